"""What is refused of drafts, heads and proposers before anything starts, each in a sentence with what works instead."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.model.facts import HeadOf
from backend.domain.recipe.recipe import read
from backend.domain.rules import check
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts
from tests.helpers.checked_cards import card

FOR = HeadOf(hidden_size=512, vocabulary=4096)
HEAD = card(
    id="head",
    layers=1,
    parameters=2_000_000,
    head_of=HeadOf(hidden_size=512, vocabulary=4096),
    vocabulary=1024,
    tokenizer_hash=None,
)


def verdict(facts: TargetFacts | None = None, **step: Any) -> Verdict:
    result = check.check_recipe(card(), read({"steps": [{"speculate": step}]}), facts or TargetFacts())
    if result.suggestion is not None:
        assert check.check_recipe(card(), result.suggestion, facts or TargetFacts()).valid
    return result


def reasons_of(result: Verdict) -> str:
    return " ".join(f"{reason.rule}: {reason.message}" for reason in result.reasons)


OTHER = card(id="other", vocabulary=8192, tokenizer_hash="other", parameters=1_000_000)


def test_a_draft_with_another_tokenizer_is_offered_what_makes_it_work() -> None:
    refused = verdict(TargetFacts(draft=OTHER), method="draft", draft="other")
    assert reasons_of(refused).startswith("draft-vocabulary") and "set `heterogeneous_vocab: true`" in reasons_of(
        refused
    )
    assert refused.suggestion is not None and refused.suggestion.steps[0].heterogeneous_vocab  # type: ignore[union-attr]
    works = verdict(TargetFacts(draft=OTHER), method="draft", draft="other", heterogeneous_vocab=True)
    assert works.plan is not None and any("both vocabularies" in note for note in works.plan.notes)


def test_a_draft_of_the_same_tokenizer_needs_no_heterogeneous_vocabulary() -> None:
    refused = verdict(TargetFacts(draft=card()), method="draft", draft="d", heterogeneous_vocab=True)
    assert "leave `heterogeneous_vocab` out" in reasons_of(refused)


def test_a_draft_larger_than_its_target_is_refused_with_both_sizes() -> None:
    large = card(id="large", parameters=12_000_000)
    refused = verdict(TargetFacts(draft=large), method="draft", draft="large")
    assert "draft-size: The draft large is larger than m (12.0 M parameters against 11.0 M)" in reasons_of(refused)
    assert refused.suggestion is not None and verdict(TargetFacts(draft=card()), method="draft", draft="same").valid


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "dflash"])
@pytest.mark.parametrize("hardware", ["cpu", "cuda"])
def test_a_head_made_for_the_model_is_planned_and_another_models_refused(method: str, hardware: Any) -> None:
    mine = HEAD.model_copy(update={"model_type": method})
    assert verdict(TargetFacts(draft=mine, hardware=hardware), method=method, draft="head").valid
    assert "name its folder with `draft: FOLDER`" in reasons_of(verdict(TargetFacts(hardware=hardware), method=method))
    for strange in ((768, 4096), (512, 32000)):
        other = mine.model_copy(update={"head_of": HeadOf(hidden_size=strange[0], vocabulary=strange[1])})
        refused = verdict(TargetFacts(draft=other, hardware=hardware), method=method, draft="head")
        assert f"trained for another model (hidden size {strange[0]} and {strange[1]} tokens" in reasons_of(refused)
        assert refused.suggestion is not None


def test_a_head_of_another_kind_is_suggested_by_its_own_method() -> None:
    heads = HEAD.model_copy(update={"model_type": "eagle3"})
    refused = verdict(TargetFacts(draft=heads), method="eagle", draft="head")
    assert reasons_of(refused) == "head-method: head is an EAGLE-3 head: use `method: eagle3`."
    assert refused.suggestion is not None and refused.suggestion.steps[0].method == "eagle3"  # type: ignore[union-attr]


def test_more_tokens_than_there_are_medusa_heads_are_refused_with_their_number() -> None:
    heads = HEAD.model_copy(
        update={"model_type": "medusa", "head_of": HeadOf(hidden_size=512, vocabulary=4096, tokens=3)}
    )
    refused = verdict(TargetFacts(draft=heads), method="medusa", draft="head")
    assert reasons_of(refused) == "head-tokens: head has heads for 3 tokens and `tokens` is 4: set `tokens: 3`."
    assert refused.suggestion is not None and refused.suggestion.steps[0].tokens == 3  # type: ignore[union-attr]
    assert verdict(TargetFacts(draft=heads), method="medusa", draft="head", tokens=3).valid


CUSTOM = {"method": "custom", "proposer": "mine.Proposer"}


@pytest.mark.parametrize(
    ("facts", "step", "words"),
    [
        (TargetFacts(), {"method": "custom"}, "name it with `proposer: package.module.Class`"),
        (TargetFacts(), CUSTOM, "start Whetstone with WHETSTONE_PROPOSERS=FOLDER"),
        (
            TargetFacts(proposers=("others",)),
            CUSTOM,
            "no module `mine` in the folder of WHETSTONE_PROPOSERS, which has others",
        ),
        (TargetFacts(place="planned", proposers=("mine",)), CUSTOM, "runs on this machine alone"),
        (TargetFacts(place="managed", proposers=("mine",)), CUSTOM, "`proposer` of `speculate` is for our own servers"),
        (TargetFacts(), {"method": "suffix"}, "needs arctic-inference"),
        (
            TargetFacts(place="managed", draft=card()),
            {"method": "draft", "draft": "d", "tokens_by_batch": {1: 4, 8: 0}},
            "`tokens_by_batch` of `speculate` is for our own servers",
        ),
    ],
)
def test_what_needs_more_than_a_model_says_what(facts: TargetFacts, step: dict[str, Any], words: str) -> None:
    assert words in reasons_of(verdict(facts, **step))


def test_a_proposer_of_ones_own_is_planned_with_a_warning() -> None:
    result = verdict(TargetFacts(proposers=("mine",)), **CUSTOM)
    assert result.plan is not None and any("foreign code" in note for note in result.plan.notes)
    assert result.plan.steps[0].options == {**CUSTOM, "tokens": 4}
    assert verdict(TargetFacts(suffixes=True), method="suffix").valid


@pytest.mark.parametrize("engine", ["llama.cpp", "openvino"])
def test_the_engine_that_serves_is_the_one_that_speculates(engine: str) -> None:
    steps = [{"quantize": {"method": "gguf", "type": "q8_0"}}, {"speculate": {"method": "ngram"}}]
    result = check.check_recipe(card(), read({"steps": steps, "serving": {"engine": engine}}), TargetFacts())
    assert result.plan is not None and [step.engine for step in result.plan.steps] == ["llama.cpp", engine]
