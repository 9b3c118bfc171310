"""Tokens that a load has under way at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backend.domain.load.options import LevelOptions
from backend.domain.needs.kv_cache_tokens import BLOCK, MARGIN, peak_tokens
from backend.domain.workload.workload import Prompt


def peak_of(prompts: Sequence[Prompt], answer: int = 64, **options: object) -> int | None:
    return peak_tokens(prompts, LevelOptions.model_validate(options), answer)


def test_the_longest_prompts_of_as_many_streams_with_their_answers() -> None:
    prompts = [Prompt(prompt="x" * 128), Prompt(prompt="x" * 1000), Prompt(prompt="x" * 384)]
    assert peak_of(prompts, concurrency=(1,)) == MARGIN * BLOCK * 10
    assert peak_of(prompts, concurrency=(1, 2)) == MARGIN * BLOCK * (10 + 5)
    assert peak_of(prompts, concurrency=(4,)) == MARGIN * BLOCK * (10 + 5 + 3 + 10), (
        "a stream more than prompts repeats the longest"
    )


def test_an_answer_of_its_own_length_and_letters_of_several_bytes_count() -> None:
    assert peak_of([Prompt(prompt="语" * 128, max_tokens=320)], concurrency=(1,)) == MARGIN * BLOCK * 7


def test_a_conversation_holds_all_its_turns() -> None:
    prompt = Prompt(prompt="a" * 100, turns=("a" * 100, "b" * 100), system="s" * 56)
    assert peak_of([prompt], concurrency=(1,)) == MARGIN * BLOCK * (-(-(256 + 2 * 128) // BLOCK) + 1)


@pytest.mark.parametrize(
    "options", [{"rate": (2.0,)}, {"ramp": (1.0, 2.0)}, {"trace": True}, {"sweep": ("ttft_p95<=1s",)}]
)
def test_streams_that_nobody_knows_beforehand_are_no_number(options: dict[str, object]) -> None:
    assert peak_of([Prompt(prompt="x")], **options) is None
