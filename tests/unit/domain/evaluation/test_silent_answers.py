"""Answers without words, or of one token where more were asked: a level of them is not valid, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.evaluation.soundness import invalidity_reasons, is_sound, level_validity
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from tests import simulated


@pytest.mark.parametrize(
    ("empty", "short", "sound"),
    [(0, 0, True), (1, 0, True), (2, 0, False), (31, 0, False), (0, 16, True), (0, 17, False)],
)
def test_more_than_one_empty_answer_in_twenty_or_mostly_one_token_is_not_valid(
    empty: int, short: int, sound: bool
) -> None:
    level = simulated.level(
        4, invocations=32, requests=32, empty_responses=empty, short_responses=short, tokenizer_failed=0
    )
    assert is_sound(level) is sound and (level_validity(level) == "yes") is sound
    assert invalidity_reasons(level) == ([] if sound else [f"{empty} of 32 answers were empty, {short} had one token"])


def test_a_variant_of_empty_answers_is_not_compared() -> None:
    results = [simulated.result(name, [simulated.level(4, seed=n)]) for n, name in enumerate(("original", "mute"))]
    mute = results[1].levels[0].model_copy(update={"empty_responses": results[1].levels[0].invocations})
    rows = compare([results[0], results[1].model_copy(update={"levels": [mute]})])
    assert {(row.outcome, row.why and row.why.cause) for row in rows} == {("not_comparable", "silent_answers")}


@pytest.mark.parametrize(("changed", "short"), [({}, 1), ({"finish_reason": "length"}, 0), ({"output_tokens": 2}, 0)])
def test_one_token_is_short_only_where_the_model_ended_it(changed: dict[str, Any], short: int) -> None:
    fields = {
        "index": 0,
        "stream": 0,
        "prompt": 0,
        "warm": False,
        "intended": 0.0,
        "sent": 0.0,
        "end": 1.0,
        "status": "ok",
        "first_content": 0.5,
        "last_content": 0.5,
        "chunk_times": (0.5,),
        "chunk_tokens": (1.0,),
        "output_tokens": 1,
        "prompt_tokens": 9,
        "text": "a",
        "finish_reason": "stop",
    }
    record = RequestRecord(**(fields | changed))
    assert summarise_level(Load("closed", 1), [[record]], [], pricing=None, acceptance=None).short_responses == short
