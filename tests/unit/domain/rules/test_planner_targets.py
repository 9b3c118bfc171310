"""Which recipe works on which target: the managed toolkit's whole table, compute capabilities, and 2,000 generated
recipes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.bundled import instances, published
from backend.domain.errors import InvalidRecipe
from backend.domain.model.facts import ModelFacts
from backend.domain.planner import roofline
from backend.domain.recipe import recipe, sagemaker_toolkit
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules import check as compat
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts
from backend.service.machines import targets
from tests.helpers.planner_targets import COMPILE, MODELS, RECIPES, SHARD, STEPS, known, target
from tests.homes import open_home
from tests.properties import examples

W8A8, AWQ, FP8 = ({"quantize": {"method": method}} for method in ("w8a8", "awq", "fp8"))
SMOOTH = {"quantize": {"method": "smoothquant"}}
DRAFT: dict[str, Any] = {"speculate": {"method": "draft", "draft": "auto"}}
LLAMA = "meta-textgeneration-llama-3-8b"


def facts(name: str, model: ModelFacts) -> TargetFacts:
    draft = published.find(model.draft) if model.draft else None
    return targets.rule_facts(target(name), model, draft)


def check(where: str, steps: list[Any], model: str = LLAMA, **serving: Any) -> Verdict:
    chosen = recipe.read({"name": "r", "steps": steps, "serving": serving})
    return compat.check_recipe(known(model), chosen, facts(where, known(model)))


def rules(verdict: Verdict) -> set[str]:
    return {reason.rule for reason in verdict.reasons}


GPU, NEURON = "sagemaker:ml.g5.12xlarge", "sagemaker:ml.inf2.48xlarge"
TABLE: list[tuple[list[Any], bool, bool]] = [
    ([], True, True),
    ([AWQ], True, False),
    ([FP8], True, False),
    ([AWQ, DRAFT], True, False),
    ([FP8, DRAFT], True, False),
    ([DRAFT], True, False),
    ([COMPILE], True, True),
    ([AWQ, COMPILE], True, False),
    ([FP8, COMPILE], True, False),
    ([SMOOTH, COMPILE], True, False),
    ([SMOOTH], False, False),
    ([DRAFT, COMPILE], False, False),
    ([AWQ, DRAFT, COMPILE], False, False),
    ([SMOOTH, DRAFT, COMPILE], False, False),
    ([SHARD], True, False),
    ([SHARD, AWQ], False, False),
    ([SHARD, DRAFT], False, False),
    ([SHARD, COMPILE], False, False),
    ([{"quantize": {"method": "gptq"}}], False, False),
    ([W8A8], False, False),
    ([{"quantize": {"method": "int8"}}], False, False),
    ([{"quantize": {"method": "rtn"}}], False, False),
    ([{"prune": {"method": "wanda"}}], False, False),
    ([{"speculate": {"method": "ngram"}}], False, False),
    ([{"speculate": {"method": "medusa"}}], False, False),
    ([{"speculate": {"method": "eagle3"}}], True, False),
]
"""The toolkit's stacking table (facts/sagemaker-toolkit.md), row by row, and what it says of everything else."""


@pytest.mark.parametrize(("where", "column"), [(GPU, 1), (NEURON, 2)], ids=["gpu", "neuron"])
@pytest.mark.parametrize(
    "row", TABLE, ids=lambda row: "+".join("".join([*s, *(o.get("method", "") for o in s.values())]) for s in row[0])
)
def test_the_managed_target_holds_to_the_toolkits_table(row: tuple[Any, ...], where: str, column: int) -> None:
    verdict = check(where, row[0], tensor_parallel=4)
    assert verdict.valid == row[column], verdict.reasons
    if not verdict.valid:
        assert "sagemaker-stacking" in rules(verdict) and sagemaker_toolkit.SDK in {
            reason.source for reason in verdict.reasons
        }
        assert verdict.suggestion is not None
        assert compat.check_recipe(known(LLAMA), verdict.suggestion, facts(where, known(LLAMA))).valid


@pytest.mark.parametrize("name", instances.load().instances)
def test_the_managed_target_takes_the_toolkits_instance_families_only(name: str) -> None:
    family = name.split(".")[1]
    verdict = check(f"sagemaker:{name}", [COMPILE], "huggingface-textgeneration-bloom-560m")
    accepted = family in {"p4d", "p4de", "p5", "g5", "g6", "inf2", "trn1", "trn1n"} and name != "ml.p5.4xlarge"
    assert verdict.valid == accepted and ("sagemaker-instance" in rules(verdict)) == (not accepted)


def test_sharding_needs_a_degree_and_the_suggestion_has_one() -> None:
    verdict = check(GPU, [SHARD])
    assert rules(verdict) == {"sagemaker-shard"} and verdict.suggestion is not None
    assert verdict.suggestion.step("shard") and verdict.suggestion.serving.tensor_parallel > 1


@pytest.mark.parametrize(
    ("model", "works"),
    [
        (LLAMA, True),
        ("huggingface-llm-mistral-7b", True),
        ("huggingface-textgeneration-bloom-560m", True),
        ("huggingface-llm-gemma-2b", False),
        ("huggingface-llm-falcon-7b-bf16", False),
    ],
)
def test_neuron_compiles_what_its_libraries_name(model: str, works: bool) -> None:
    """It "worked" for every architecture, unasked."""
    verdict = check("sagemaker:ml.inf2.48xlarge", [COMPILE], model)
    assert ("neuron-family" not in rules(verdict)) == works == verdict.valid
    assert works or "AWS Neuron SDK" in next(
        reason.source for reason in verdict.reasons if reason.rule == "neuron-family"
    )
    assert "neuron-family" not in rules(check("sagemaker:ml.g5.12xlarge", [COMPILE], model))


def test_the_page_says_which_models_may_not_be_quantized() -> None:
    assert "sagemaker-model" in rules(check("sagemaker:ml.p4de.24xlarge", [FP8], "huggingface-llm-falcon-180b-bf16"))
    assert "sagemaker-model" in rules(
        check(GPU, [{"speculate": {"method": "eagle3"}}], "huggingface-textgeneration-gpt2")
    )


def test_speculation_alone_needs_no_job_there_and_the_plan_says_so() -> None:
    verdict = check(GPU, [DRAFT])
    assert verdict.plan is not None and sagemaker_toolkit.NO_JOB in verdict.plan.notes
    assert {step.engine for step in verdict.plan.steps} == {"sagemaker"}


@pytest.mark.parametrize(
    ("where", "step", "rule"),
    [
        ("ml.g4dn.12xlarge", W8A8, None),
        ("ml.g5.xlarge", W8A8, None),
        ("ml.p5.48xlarge", W8A8, None),
        ("ml.p6-b200.48xlarge", W8A8, "compute-capability"),
        ("ml.p6-b200.48xlarge", AWQ, None),
        ("ml.p6-b200.48xlarge", {"quantize": {"method": "awq", "target_bits": 5}}, None),
        (
            "ml.p6-b200.48xlarge",
            {"quantize": {"method": "awq", "target_bits": 5, "eight_bits": "w8a8"}},
            "compute-capability",
        ),
        ("ml.g5.12xlarge", {"quantize": {"method": "awq", "target_bits": 5, "eight_bits": "w8a8"}}, None),
        ("ml.g4dn.12xlarge", AWQ, None),
        ("ml.g5.12xlarge", FP8, None),
        ("ml.g4dn.12xlarge", FP8, None),
        ("ml.g6.xlarge", FP8, None),
        ("ml.inf2.48xlarge", AWQ, "no-engine"),
    ],
)
def test_our_engines_go_by_compute_capability(where: str, step: Any, rule: str | None) -> None:
    assert rule is None or rule in rules(check(where, [step]))
    assert check(where, [step]).valid == (rule is None)


@pytest.mark.parametrize(
    ("where", "kernel", "noted"),
    [
        ("ml.g4dn.12xlarge", "weight-only FP8 (Humming)", True),
        ("ml.g5.12xlarge", "weight-only FP8 (Humming)", True),
        ("ml.p4d.24xlarge", "weight-only FP8 (Humming)", True),
        ("ml.g6.xlarge", "FP8 W8A8 (CUTLASS)", False),
    ],
)
def test_fp8_is_served_below_8_9_by_its_weights_alone(where: str, kernel: str, noted: bool) -> None:
    """vLLM 0.32, compressed_tensors.py, _get_scheme_from_parts: CompressedTensorsW8A16Fp8, from 7.5."""
    plan = check(where, [FP8]).plan
    assert plan is not None and plan.steps[0].kernel == kernel
    assert any("weights only" in note and "not operations" in note for note in plan.notes) == noted


def test_fp8_weights_alone_are_multiplied_at_the_16_bit_rate() -> None:
    first = {}
    for where in ("ml.g5.xlarge", "ml.g6.xlarge"):
        device = target(where).device
        for name, step in {"fp8": FP8, "int8": {"quantize": {"method": "int8"}}}.items():
            what = roofline.served_model(known(LLAMA), recipe.read({"steps": [step]}))
            first[where, name] = roofline.prefill_seconds(what, device, 1, 4096, 0)
    assert first["ml.g5.xlarge", "fp8"] == pytest.approx(first["ml.g5.xlarge", "int8"], rel=0.01)
    assert first["ml.g6.xlarge", "fp8"] < 0.7 * first["ml.g6.xlarge", "int8"]


@pytest.mark.parametrize(
    ("where", "serving", "valid"),
    [
        ("ml.g4dn.12xlarge", {"dtype": "bfloat16"}, False),
        ("ml.g5.12xlarge", {"dtype": "bfloat16"}, True),
        ("ml.g5.12xlarge", {"kv_cache_dtype": "fp8"}, False),
        ("ml.g6.12xlarge", {"kv_cache_dtype": "fp8"}, True),
        ("ml.g5.12xlarge", {"tensor_parallel": 3}, False),
        ("ml.g5.12xlarge", {"tensor_parallel": 8}, False),
        ("ml.g5.12xlarge", {"tensor_parallel": 4}, True),
    ],
)
def test_serving_settings_are_held_against_the_hardware(where: str, serving: dict[str, Any], valid: bool) -> None:
    verdict = check(where, [], **serving)
    assert verdict.valid == valid, verdict.reasons
    if not valid:
        assert verdict.suggestion is not None and check(where, [], **verdict.suggestion.serving.model_dump()).valid


def test_what_does_not_fit_is_refused_with_a_recipe_that_does() -> None:
    verdict = check("ml.g5.12xlarge", [], "meta-textgeneration-llama-3-70b")
    assert rules(verdict) == {"memory"} and verdict.suggestion is not None
    assert [step.technique for step in verdict.suggestion.steps] == ["quantize"]
    plan = check("ml.g5.12xlarge", [AWQ], "meta-textgeneration-llama-3-70b").plan
    assert plan is not None and plan.tensor_parallel == 4 and "4 accelerators: tensor parallel 4." in plan.notes
    assert plan.steps[0].kernel.startswith("weight-only INT4")


def test_what_fits_in_no_recipe_is_refused_without_one() -> None:
    verdict = check("ml.g4dn.xlarge", [], "meta-llama/Llama-3.1-405B")
    assert rules(verdict) == {"memory"} and verdict.suggestion is None


def test_nothing_of_ours_runs_on_neuron_and_the_managed_toolkit_is_named() -> None:
    verdict = check("ml.inf2.48xlarge", [AWQ, DRAFT])
    assert verdict.suggestion_target == "sagemaker:ml.inf2.48xlarge" and verdict.suggestion is not None
    assert compat.check_recipe(known(LLAMA), verdict.suggestion, facts(verdict.suggestion_target, known(LLAMA))).valid


def test_compile_before_quantize_is_put_right_with_a_note() -> None:
    for where in ("ml.g5.12xlarge", GPU):
        plan = check(where, [COMPILE, AWQ]).plan
        assert plan is not None and [step.technique for step in plan.steps] == ["quantize", "compile"]
        assert any(note.startswith("Steps run in the order quantize, compile") for note in plan.notes)


def test_families_unknown_to_the_native_engine_are_refused_here_and_not_there() -> None:
    model, chosen = known(LLAMA).model_copy(update={"model_type": "mamba"}), recipe.read({"steps": [AWQ]})
    assert rules(compat.check_recipe(model, chosen, facts("ml.g5.12xlarge", model))) == {"family"}
    assert compat.check_recipe(model, chosen, facts(GPU, model)).valid


@pytest.mark.parametrize(
    "name", ["huggingface-llm-mistral-7b-openorca-gptq", "huggingface-llm-thebloke-mistral-7b-openorca-awq"]
)
def test_what_is_already_quantized_is_not_quantized_again_whatever_the_page_says(name: str) -> None:
    assert "already-quantized" in rules(check(GPU, [AWQ], name)) and "already-quantized" in rules(
        check("ml.g5.12xlarge", [AWQ], name)
    )


def test_an_embedding_model_has_nothing_to_speculate_on() -> None:
    assert "no-tokens" in rules(
        check("ml.g5.12xlarge", [{"speculate": {"method": "ngram"}}], "huggingface-textembedding-bloom-7b1")
    )


PLACES = [name for name in instances.load().names() if instances.load().find(name)]


@examples(2000)
@given(RECIPES, st.sampled_from(PLACES), st.sampled_from(MODELS))
def test_any_recipe_is_planned_or_refused_with_a_valid_suggestion(chosen: Recipe, where: str, name: str) -> None:
    model = known(name)
    verdict = compat.check_recipe(model, chosen, facts(where, model))
    assert verdict.valid == (not verdict.reasons)
    if verdict.plan is not None:
        order = [recipe.TECHNIQUES.index(step.technique) for step in verdict.plan.steps]
        assert order == sorted(order) and verdict.suggestion is None
        return
    assert all(reason.message.endswith(".") and reason.rule and reason.source for reason in verdict.reasons)
    if verdict.suggestion is not None:
        there = facts(verdict.suggestion_target or where, model)
        assert compat.check_recipe(model, verdict.suggestion, there).valid
        return
    # One reason may hide another: a degree that the place does not have, or a step that it refuses, that it is too
    # small.
    lower = chosen.serving.model_copy(update={"tensor_parallel": 1})
    others = [chosen.model_copy(update={"serving": lower, "steps": steps}) for steps in (chosen.steps, ())]
    all_names = rules(verdict).union(
        *(rules(compat.check_recipe(model, other, facts(where, model), suggest=False)) for other in others)
    )
    expected = {"memory", "no-engine", "neuron-family"}
    assert expected & all_names, "only what is too small, or has no engine or library there, has no valid recipe"


@examples(300)
@given(RECIPES, st.sampled_from([place for place in PLACES if place.startswith("ml.")]), st.sampled_from(MODELS))
def test_no_plan_of_ours_asks_for_what_the_capability_table_lacks(chosen: Recipe, where: str, name: str) -> None:
    model = known(name)
    verdict = compat.check_recipe(model, chosen, facts(where, model), suggest=False)
    if verdict.plan is None:
        return
    from backend.domain.recipe.capability_table import NATIVE_FAMILIES, capability

    for step in chosen.steps:
        engine = getattr(step, "engine", "native")
        assert capability(step.technique, getattr(step, "method", None), engine, verdict.plan.hardware).supported
        assert step.technique != "quantize" or model.model_type in NATIVE_FAMILIES


def test_every_pair_of_steps_is_decided_on_every_kind_of_target() -> None:
    for a, b in itertools.product(STEPS, STEPS):
        for where in ("ml.g5.12xlarge", "accelerator:rtx4090", GPU, NEURON, "ml.trn2.48xlarge"):
            verdict = check(where, [a, b])
            assert verdict.valid or verdict.reasons


def test_a_gpu_that_is_not_here_is_refused_in_one_sentence(tmp_path: Any) -> None:
    from backend.hardware import probe

    workspace = open_home(tmp_path)
    count = len(probe.accelerators())
    with pytest.raises(InvalidRecipe, match="no GPU"):
        targets.find(workspace, f"local:gpu{count}")
    assert targets.find(workspace, "local:cpu").device.hardware == "cpu"
