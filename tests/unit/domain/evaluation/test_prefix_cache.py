"""Hits of a server's prefix cache, and how many of them the workload itself gives: more than these is a replayed
prompt."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.evaluation.document import Level
from backend.domain.evaluation.prefix_cache import PrefixHits, SentPrefixes, with_hit_rates
from backend.domain.evaluation.soundness import invalidity_reasons, is_sound, level_validity
from backend.domain.load.records import RequestRecord
from backend.domain.workload.workload import Prompt
from tests import simulated

LENGTH = 400
"""Characters of a prompt of 100 tokens."""


def record(number: int, prompt: int, **changed: Any) -> RequestRecord:
    fields = {
        "index": number,
        "stream": 0,
        "prompt": prompt,
        "warm": False,
        "intended": float(number),
        "sent": float(number),
        "end": number + 1.0,
        "status": "ok",
        "prompt_tokens": 100,
        "text": "answer",
        "output_tokens": 3,
    }
    return RequestRecord(**(fields | changed))


def different(count: int) -> list[Prompt]:
    return [Prompt(prompt=f"{number:04d}" * (LENGTH // 4)) for number in range(count)]


def sharing(count: int, shared: int) -> list[Prompt]:
    return [Prompt(prompt="s" * shared + f"{number:04d}" * ((LENGTH - shared) // 4)) for number in range(count)]


def test_prompts_of_their_own_are_expected_to_give_no_hits() -> None:
    run = SentPrefixes(different(8), block=16).record_run([record(n, n) for n in range(8)], None)
    assert run == PrefixHits(None, 0, 800)


def test_a_replayed_line_is_no_repeat_that_runs_of_fresh_lines_expect() -> None:
    prefixes = SentPrefixes(different(16), block=16)
    prefixes.record_run([record(n, n, warm=True) for n in range(8)], None)
    run = prefixes.record_run([record(n, n + 8, cached_tokens=96 if n % 2 else 0) for n in range(8)], None)
    assert run == PrefixHits(4 * 96, 0, 800)
    level = with_hit_rates(simulated.level(4), [run])
    assert (level.prefix_cache_hit_rate, level.prefix_cache_expected) == (0.48, 0.0)
    assert not is_sound(level) and level_validity(level) == "no"
    assert invalidity_reasons(level) == [
        "48% of the prompts' tokens came from the server's prefix cache, where the workload repeats at most 0%"
    ]


def test_instructions_that_prompts_share_are_expected_in_whole_blocks() -> None:
    prompts = sharing(4, 200)
    records = [record(n, n, cached_tokens=0 if n == 0 else 48) for n in range(4)]
    run = SentPrefixes(prompts, block=16).record_run(records, None)
    assert run == PrefixHits(3 * 48, 3 * 48, 400), (
        "half of 100 tokens, in blocks of 16; the first had nothing before it"
    )
    assert is_sound(with_hit_rates(simulated.level(4), [run]))
    assert SentPrefixes(prompts, block=128).record_run(records, None).expected == 0


def test_a_turn_is_expected_to_begin_with_the_turns_before_it() -> None:
    talk = Prompt(prompt="a" * 40, turns=("a" * 40, "b" * 40), system="c" * 40)
    turns = [record(n, 0, session=0, turn=n, prompt_tokens=(80, 160)[n], text="d" * 40) for n in range(2)]
    assert SentPrefixes([talk], block=1).record_run(turns, None).expected == 120


@pytest.mark.parametrize(("counted", "number"), [((30, 120), 200), ((0, 90), 0), (None, None), ((0, 0), None)])
def test_the_servers_own_counters_tell_where_answers_do_not(
    counted: tuple[int, int] | None, number: int | None
) -> None:
    assert SentPrefixes(different(8)).record_run([record(n, n) for n in range(8)], counted).reported == number


def test_a_chat_template_before_every_prompt_is_expected_from_the_second_on() -> None:
    run = SentPrefixes(different(3), block=16, template=40).record_run([record(n, n) for n in range(3)], None)
    assert run.expected == 2 * 32


def test_a_prompt_is_never_kept_whole_and_a_failed_one_counts_for_nothing() -> None:
    prefixes = SentPrefixes(different(1), block=1)
    prefixes.record_run([record(0, 0)], None)
    assert prefixes.record_run([record(1, 0), record(2, 0, status="timeout", prompt_tokens=None)], None) == PrefixHits(
        None, 99, 100
    )


def test_what_no_server_tells_is_not_known_and_nothing_is_forbidden() -> None:
    level: Level = with_hit_rates(simulated.level(4), [PrefixHits(None, 0, 100)])
    assert level.prefix_cache_hit_rate is None and is_sound(level)
