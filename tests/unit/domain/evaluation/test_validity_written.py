"""Each level's written form says whether it is valid and why not, in the words of the screens; so do an evaluation's
warnings."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from app.results import measurement_conditions
from backend.domain.evaluation.document import Evaluation, Level, read_evaluation
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.evaluation.soundness import invalidity_reasons, level_validity, validity_warnings
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.present import evaluation_top
from tests import simulated

MUTE = simulated.level(4, invocations=40, requests=40, empty_responses=40, tokenizer_failed=0)
BUFFERED = simulated.level(4, invocations=40, requests=40, tokenizer_failed=0, buffered_responses=21)
UNCOUNTED = simulated.uncounted(simulated.level(4))


@pytest.mark.parametrize("level", [MUTE, BUFFERED, UNCOUNTED, simulated.level(4)])
def test_the_written_form_of_a_level_says_what_the_screens_say(level: Level) -> None:
    written = json.loads(level.model_dump_json())
    assert (written["valid"], written["reasons"]) == (level_validity(level), invalidity_reasons(level))
    document = simulated.evaluation().model_copy(update={"variants": [simulated.result("only", [level])]})
    (row,) = measurement_conditions.validity_rows(document)
    assert (row["Valid"], row["Why not"]) == (written["valid"], "; ".join(written["reasons"]))


@pytest.mark.parametrize("stored", [{}, {"valid": "yes", "reasons": []}])
def test_validity_is_computed_anew_when_a_document_is_read(stored: dict[str, Any]) -> None:
    """Documents that were stored before have none; one that was stored under other rules is judged by these."""
    document = simulated.evaluation().model_copy(update={"variants": [simulated.result("only", [MUTE])]})
    written = document.model_dump(mode="json")
    (level,) = written["variants"][0]["levels"]
    del level["valid"], level["reasons"], level["buffered_responses"]
    level.update(stored)
    read = read_evaluation(json.dumps(written))
    assert read == document and read.variants[0].levels[0].valid == "no"


def test_levels_that_are_not_valid_or_only_in_part_are_warned_of() -> None:
    results = [simulated.result("mute", [simulated.level(1), MUTE]), simulated.result("proxied", [BUFFERED])]
    wrong, in_part = validity_warnings(results)
    assert wrong == (
        "1 of 3 levels are not the server's figures (`mute` at 4 streams: 40 of 40 answers were empty, 0 had one "
        "token)."
    )
    assert in_part.startswith(
        "1 of 3 levels are valid in part (`proxied` at 4 streams: 21 of 40 answers came in one piece"
    )
    assert validity_warnings([simulated.result("fine", [simulated.level(1)])]) == []


@pytest.mark.parametrize(("level", "words"), [(BUFFERED, "in one piece"), (UNCOUNTED, "without a token count")])
def test_page_and_report_say_once_of_such_levels_what_is_not_known(level: Level, words: str) -> None:
    results = [simulated.result("only", [level])]
    document: Evaluation = simulated.evaluation().model_copy(
        update={"variants": results, "comparison": [], "warnings": validity_warnings(results)}
    )
    (sentence,) = evaluation_top.caveat_sentences(document)
    assert sentence.startswith("1 of 1 levels are valid in part") and words in sentence


def answer(times: tuple[float, ...], **changed: Any) -> RequestRecord:
    """One token a chunk, at those times after the request."""
    fields = {
        "index": 0,
        "stream": 0,
        "prompt": 0,
        "warm": False,
        "intended": 0.0,
        "sent": 0.0,
        "end": times[-1],
        "status": "ok",
        "first_content": times[0],
        "last_content": times[-1],
        "chunk_times": times,
        "output_tokens": len(times),
        "chunk_tokens": tuple(map(float, range(1, len(times) + 1))),
        "prompt_tokens": 9,
        "text": "a b",
        "finish_reason": "stop",
    }
    return RequestRecord(**(fields | changed))


def level_of(*records: RequestRecord) -> Level:
    return summarise_level(Load("closed", 1), [records], [], pricing=None, acceptance=None)


@pytest.mark.parametrize("times", [(0.5,) * 8, tuple(0.5 + n * 1e-5 for n in range(8))])
def test_an_answer_that_came_at_once_has_no_time_between_tokens(times: tuple[float, ...]) -> None:
    level = level_of(answer(times))
    assert (level.tpot_ms, level.chunk_gap_ms, level.buffered_responses, level.valid) == (None, None, 1, "in part")
    assert level.ttft_ms is not None and level.ttft_ms.p50 == 500


def test_of_a_stream_that_is_held_back_in_part_reads_are_counted_and_not_chunks() -> None:
    """Tokens every 10 ms, in reads of four: the first read's tokens are no time old, the other eight came in 80 ms."""
    times = tuple(0.04 * (n // 4 + 1) for n in range(12))
    level = level_of(answer(times))
    assert level.tpot_ms is not None and level.tpot_ms.mean == pytest.approx(10.0)
    assert (level.chunk_gap_ms, level.buffered_responses) == (None, 0)


def test_gaps_are_those_between_reads() -> None:
    times = (0.1, 0.2, 0.2, 0.3, 0.4)
    level = level_of(answer(times))
    assert level.chunk_gap_ms is not None
    assert level.chunk_gap_ms.mean == pytest.approx(1000 * sum(b - a for a, b in pairwise(sorted(set(times)))) / 3)


def test_a_single_chunk_and_a_whole_answer_are_not_held_back() -> None:
    whole = answer((0.5, 0.5), streamed=False)
    assert level_of(answer((0.5,)), whole).buffered_responses == 0
