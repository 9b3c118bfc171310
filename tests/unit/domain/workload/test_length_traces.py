"""Prompts made for a trace of lengths: as long as it says, and alike as far as it says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pytest

from backend.catalog.text import token_lengths
from backend.domain.errors import InvalidWorkload
from backend.domain.workload.length_traces import MISFIT, infer_block_size, make_prompts, require_made_size
from backend.settings import ASSETS

STARTER = ASSETS / "starter" / "target"


def count(texts: Sequence[str]) -> list[int]:
    counted = token_lengths.lengths(STARTER, texts)
    assert counted is not None
    return counted


def beginning(one: str, other: str) -> str:
    """What both begin with."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_prompts_have_their_lengths_by_the_tokenizer_and_begin_differently() -> None:
    lengths = [20, 64, 300, 301, 640]
    prompts = make_prompts([(length, None) for length in lengths], None, 0, count)
    assert all(abs(tokens - length) <= 4 for tokens, length in zip(count(prompts), lengths, strict=True))
    assert max(len(beginning(a, b)) for a in prompts for b in prompts if a is not b) < 40
    assert prompts == make_prompts([(length, None) for length in lengths], None, 0, count)
    assert prompts != make_prompts([(length, None) for length in lengths], None, 1, count)


def test_prompts_share_the_blocks_that_their_ids_name_and_no_more() -> None:
    """In tokens, as a server's cache sees them: 64 a block."""
    rows = [(150, (1, 2, 3)), (160, (1, 2, 4)), (130, (1, 5, 6)), (150, (1, 2, 3)), (40, (7,))]
    prompts = make_prompts(rows, 64, 0, count)
    assert all(abs(tokens - length) <= 6 for tokens, (length, _) in zip(count(prompts), rows, strict=True))

    def shared(a: int, b: int) -> int:
        return count([beginning(prompts[a], prompts[b])])[0]

    assert abs(shared(0, 1) - 128) <= 6 and abs(shared(0, 2) - 64) <= 6
    assert prompts[0] == prompts[3] and shared(0, 4) < 16


@pytest.mark.parametrize(
    ("rows", "size", "misfits"),
    [
        ([(655, (46, 47)), (1024, (46, 47)), (512, (1,))], 512, {}),
        ([(655, (0, 1, 2)), (666, (0, 1, 3))], 256, {}),
        ([(655, (46, 47)), (600, (46, 47)), (9, (1, 2, 3))], 512, {2: MISFIT}),
        ([(655, None), (None, None)], None, {}),
    ],
)
def test_the_size_of_a_block_follows_from_lengths_and_ids(
    rows: list[tuple[int | None, tuple[int, ...] | None]], size: int | None, misfits: dict[int, str]
) -> None:
    assert infer_block_size(rows) == (size, misfits)


def test_more_tokens_than_may_be_made_are_refused_with_the_rows_that_may() -> None:
    require_made_size("t", [8000] * 2500)
    with pytest.raises(InvalidWorkload, match=r"t have 24 million tokens in 3,000 rows.* its first 2,500 rows"):
        require_made_size("t", [8000] * 3000)
