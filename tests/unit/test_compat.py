"""Which recipe works on which model: every refusal has a reason, a source, and a suggestion that is itself valid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain import compat, estimate, recipe
from backend.domain.compat import Facts
from backend.domain.errors import InvalidRecipe
from backend.domain.model import ModelCard
from backend.domain.recipe import Recipe


def card(**changes: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "id": "m", "path": "m", "origin": "folder", "revision": "r", "architecture": "LlamaForCausalLM", "model_type": "llama",
        "layers": 3, "hidden_size": 512, "intermediate_size": 1536, "heads": 8, "kv_heads": 2, "head_dim": 64,
        "vocabulary": 4096, "max_positions": 2048, "dtype": "bfloat16", "tied_embeddings": True, "parameters": 11_000_000,
        "weights_bytes": 22_000_000, "tokenizer_hash": "t",
    }  # fmt: skip
    return ModelCard(**{**fields, **changes})


def refusals(model: ModelCard, steps: list[Any], facts: Facts | None = None, **serving: Any) -> list[str]:
    chosen = recipe.read({"name": "r", "steps": steps, "serving": serving})
    return [reason.rule for reason in compat.check(model, chosen, facts or Facts(draft=card())).reasons]


def test_a_family_is_refused_only_by_the_engine_that_does_not_know_it() -> None:
    gpt = card(model_type="gpt_neox")
    assert refusals(gpt, [{"quantize": {"method": "gptq", "engine": "llm-compressor"}}]) == []
    assert refusals(gpt, [{"quantize": {"method": "awq", "engine": "autoawq"}}]) == ["library"]


W8A8 = {"quantize": {"method": "w8a8"}}
AWQ = {"quantize": {"method": "awq"}}
DRAFT = {"speculate": {"method": "draft", "draft": "auto"}}


@pytest.mark.parametrize("steps", [[], [W8A8], [AWQ], [DRAFT], [W8A8, DRAFT], [AWQ, {"speculate": {"method": "ngram"}}],
                                   [W8A8, {"compile": {}}], [W8A8, DRAFT, {"compile": {}}],
                                   [{"quantize": {"method": "gptq", "engine": "llm-compressor"}}],
                                   [{"quantize": {"method": "awq", "engine": "autoawq"}}, DRAFT]])  # fmt: skip
def test_every_stack_of_this_version_is_valid(steps: list[Any]) -> None:
    assert refusals(card(), steps) == []


@pytest.mark.parametrize(
    ("rule", "steps", "serving"),
    [
        ("one-weight-quantization", [W8A8, AWQ], {}),
        ("capability", [{"quantize": {"method": "gptq"}}], {}),
        ("capability", [{"prune": {"method": "wanda"}}], {}),
        ("capability", [{"quantize": {"method": "w8a8", "engine": "autoawq"}}], {}),
        ("library", [{"quantize": {"method": "awq", "engine": "autoawq", "symmetric": True}}], {}),
        ("library", [{"quantize": {"method": "gptq", "engine": "llm-compressor", "bits": 8}}], {}),
        ("library", [{"quantize": {"method": "awq", "engine": "llm-compressor", "format": "autoawq"}}], {}),
        ("group-size", [{"quantize": {"method": "awq", "group_size": 96}}], {}),
        ("w8a8-options", [{"quantize": {"method": "w8a8", "group_size": 128}}], {}),
        ("once", [DRAFT, DRAFT], {}),
        ("eager-compile", [{"compile": {}}], {"enforce_eager": True}),
        ("context", [], {"max_model_len": 4096}),
    ],
)
def test_a_stack_that_cannot_work_is_refused_by_its_rule(rule: str, steps: list[Any], serving: dict[str, Any]) -> None:
    assert rule in refusals(card(), steps, **serving)


def test_a_draft_with_another_vocabulary_is_refused() -> None:
    assert refusals(card(), [DRAFT], Facts(draft=card(tokenizer_hash="other"))) == ["draft-vocabulary"]
    assert refusals(card(), [DRAFT], Facts(draft=None)) == ["no-draft"]


def test_compile_without_a_compiler_and_a_quantized_model_are_refused() -> None:
    assert refusals(card(), [{"compile": {}}], Facts(compiler=False)) == ["no-compiler"]
    assert refusals(card(quantization="awq"), [W8A8]) == ["already-quantized"]


def test_steps_out_of_order_are_put_in_order_with_a_note() -> None:
    verdict = compat.check(card(), recipe.read({"steps": [{"compile": {}}, W8A8]}), Facts())
    assert verdict.plan is not None
    assert [step.technique for step in verdict.plan.steps] == ["quantize", "compile"] and verdict.plan.notes


STEPS = st.one_of(
    st.fixed_dictionaries(
        {"quantize": st.fixed_dictionaries({"method": st.sampled_from(["awq", "gptq", "w8a8", "fp8", "rtn", "int8"])},
                                           optional={"group_size": st.sampled_from([32, 96, 128]), "symmetric": st.booleans(),
                                                     "engine": st.sampled_from(["native", "autoawq", "llm-compressor"])})}),
    st.fixed_dictionaries(
        {"speculate": st.fixed_dictionaries({"method": st.sampled_from(["draft", "ngram", "suffix", "eagle3"])})}),
    st.just({"compile": {}}),
    st.fixed_dictionaries({"prune": st.fixed_dictionaries({"method": st.sampled_from(["wanda", "magnitude"])})}),
)  # fmt: skip
RECIPES = st.builds(
    lambda steps, length, eager: recipe.read(
        {"name": "any", "steps": steps, "serving": {"max_model_len": length, "enforce_eager": eager}}
    ),
    st.lists(STEPS, max_size=4), st.sampled_from([None, 512, 4096]), st.booleans(),
)  # fmt: skip


@given(RECIPES, st.booleans(), st.booleans(), st.sampled_from([512, 480, 96]))
def test_every_refusal_has_a_reason_and_its_suggestion_is_valid(chosen: Recipe, draft: bool, compiler: bool, hidden: int) -> None:
    model, facts = card(hidden_size=hidden), Facts(draft=card() if draft else None, compiler=compiler)
    verdict = compat.check(model, chosen, facts)
    assert verdict.valid == (not verdict.reasons)
    if not verdict.valid:
        assert all(reason.message.endswith(".") and reason.source for reason in verdict.reasons)
        assert verdict.suggestion is not None and compat.check(model, verdict.suggestion, facts).valid


@given(RECIPES)
def test_a_recipe_survives_being_written_and_read(chosen: Recipe) -> None:
    again = recipe.read(chosen.model_dump(mode="json"))
    assert again == chosen and again.hash == chosen.hash


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_whatever_is_written_is_read_or_refused_with_a_sentence(document: Any) -> None:
    try:
        recipe.read(document)
    except InvalidRecipe as error:
        assert str(error).endswith((".", "--help`."))


def test_the_weights_estimate_follows_the_precision() -> None:
    sizes = [estimate.optimized_weights(card(), recipe.read({"steps": steps})) for steps in ([], [W8A8], [AWQ])]
    assert sizes[0] > sizes[1] > sizes[2]
    assert estimate.need(card(), recipe.read({"steps": [W8A8]})).disk_bytes > sizes[1]
