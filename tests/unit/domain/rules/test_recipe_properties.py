"""Any recipe on any model: valid, or refused with a reason, a source and a suggestion that is itself valid."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidRecipe
from backend.domain.recipe import methods, recipe
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from tests.helpers.checked_cards import card

KNOWN = {*methods.QUANTIZE, *(method for _, method in methods.WHY_NOT)}
STEPS = st.one_of(
    st.fixed_dictionaries(
        {
            "quantize": st.fixed_dictionaries(
                {"method": st.sampled_from(sorted(KNOWN))},
                optional={
                    "bits": st.sampled_from([4, 8]),
                    "clip": st.booleans(),
                    "act_order": st.booleans(),
                    "kv_cache": st.just("fp8"),
                    "activations": st.sampled_from(["dynamic", "static"]),
                    "target_bits": st.sampled_from([3.0, 4.2, 5.0, 17.0]),
                    "eight_bits": st.sampled_from(["int8", "w8a8"]),
                    "format": st.sampled_from(["autoawq", "compressed-tensors"]),
                    "group_size": st.sampled_from([32, 96, 128]),
                    "symmetric": st.booleans(),
                    "engine": st.sampled_from(["native", "autoawq", "llm-compressor"]),
                },
            )
        }
    ),
    st.fixed_dictionaries(
        {"speculate": st.fixed_dictionaries({"method": st.sampled_from(["draft", "ngram", "suffix", "eagle3"])})}
    ),
    st.just({"compile": {}}),
    st.fixed_dictionaries(
        {
            "prune": st.fixed_dictionaries(
                {"method": st.sampled_from(["wanda", "magnitude"])},
                optional={"pattern": st.sampled_from(["2:4", "unstructured"]), "sparsity": st.sampled_from([0.5, 0.6])},
            )
        }
    ),
)
RECIPES = st.builds(
    lambda steps, length, eager, limits: recipe.read(
        {"name": "any", "steps": steps, "serving": {"max_model_len": length, "enforce_eager": eager}, "limits": limits}
    ),
    st.lists(STEPS, max_size=4),
    st.sampled_from([None, 512, 4096]),
    st.booleans(),
    st.sampled_from([{}, {"max_kl": 0.01}, {"max_kl": 0.01, "fall_back": True}, {"fall_back": True}]),
)


@given(RECIPES, st.booleans(), st.booleans(), st.sampled_from([512, 480, 96]))
def test_every_refusal_has_a_reason_and_its_suggestion_is_valid(
    chosen: Recipe, draft: bool, compiler: bool, hidden: int
) -> None:
    model, facts = card(hidden_size=hidden), TargetFacts(draft=card() if draft else None, compiler=compiler)
    verdict = check.check_recipe(model, chosen, facts)
    assert verdict.valid == (not verdict.reasons)
    if not verdict.valid:
        assert all(reason.message.endswith(".") and reason.source for reason in verdict.reasons)
        assert verdict.suggestion is not None and check.check_recipe(model, verdict.suggestion, facts).valid


@given(RECIPES)
def test_a_recipe_survives_being_written_and_read(chosen: Recipe) -> None:
    again = recipe.read(chosen.model_dump(mode="json"))
    assert again == chosen and again.hash == chosen.hash


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_is_written_is_read_or_refused_with_a_sentence(document: Any) -> None:
    try:
        recipe.read(document)
    except InvalidRecipe as error:
        assert str(error).endswith(".")
