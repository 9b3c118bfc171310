"""Traces of lengths: prompts recorded as a number of tokens, without their text. Texts of these lengths are made. Pure.

Mooncake's traces name the blocks of each prompt by `hash_ids`: prompts with the same first ids begin alike, and a
server's prefix cache answers that part (Qin et al., Mooncake, 2024; 512 tokens a block, the last one shorter). The same
id is given the same text, so that a cache finds as much as it did in the recorded traffic. Other traces say nothing of
it, and each prompt is made to begin differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from backend.domain.errors import InvalidWorkload
from backend.domain.workload import size_limits
from backend.domain.workload.generators import TokenCounter, fill_texts

MOONCAKE = {"hash_ids", "text_input"}
"""Fields that only traces of Mooncake's form have."""
USUAL_BLOCK = 512
BLOCK_SIZES = (USUAL_BLOCK, 16, 32, 64, 128, 256, 1024, 2048, 4096)
MISFIT = 'its "hash_ids" are not as many as blocks of its length'

Lengths = tuple[int | None, tuple[int, ...] | None]
"""Tokens of a prompt, and the ids of its blocks."""


def infer_block_size(rows: Sequence[Lengths]) -> tuple[int | None, dict[int, str]]:
    """Tokens of a block: 512, or the power of two by which more rows have as many ids as blocks. None without ids.

    Second: why the rows at these places fit no such block.
    """
    complete = {
        place: (tokens, ids) for place, (tokens, ids) in enumerate(rows) if tokens is not None and ids is not None
    }
    if not complete:
        return None, {}
    fitting: Counter[int] = Counter()
    for size in BLOCK_SIZES:
        fitting[size] = sum(_fits(tokens, len(ids), size) for tokens, ids in complete.values())
    best = max(BLOCK_SIZES, key=lambda size: (fitting[size], size == USUAL_BLOCK))
    return best, {place: MISFIT for place, (tokens, ids) in complete.items() if not _fits(tokens, len(ids), best)}


def _fits(tokens: int, ids: int, size: int) -> bool:
    return (ids - 1) * size < tokens <= ids * size


def require_made_size(name: str, lengths: Sequence[int]) -> None:
    """Raises InvalidWorkload where the prompts would be more than may be made, with the number of rows that are not."""
    if size_limits.fits_limits(len(lengths), sum(lengths)):
        return
    tokens, rows = 0, 0
    for length in lengths:
        tokens += length
        if not size_limits.fits_limits(rows + 1, tokens):
            break
        rows += 1
    raise InvalidWorkload(
        f"The prompts of {name} have {sum(lengths) / 1e6:,.0f} million tokens in {len(lengths):,} rows, and at most "
        f"{size_limits.MOST_MADE_TOKENS // 1_000_000} million are made: take a sample, such as its first {rows:,} rows."
    )


def make_prompts(rows: Sequence[Lengths], size: int | None, seed: int, count: TokenCounter) -> list[str]:
    """A text for each row, of its number of tokens by `count`. `size`: tokens of a block, where rows have ids of
    blocks."""
    around = count([""])[0]  # what a server adds to a prompt, and no part of a block
    # 1. The blocks that are whole, each made once.
    whole = list(dict.fromkeys(block for _, ids in rows for block in (ids or ())[:-1]))
    blocks = dict(
        zip(
            whole, _texts([(size or 0) + around] * len(whole), [f"{seed}-block-{b}" for b in whole], count), strict=True
        )
    )
    # 2. The last block of each row, or all of a row without ids, as long as what is left.
    seeds = [f"{seed}-block-{ids[-1]}" if ids else f"{seed}-row-{number}" for number, (_, ids) in enumerate(rows)]
    left = [
        (tokens or 1) - (len(ids) - 1) * (size or 0) + around * (len(ids) > 1) if ids else tokens or 1
        for tokens, ids in rows
    ]
    lasts = _texts(left, seeds, count)
    # 3. One after the other. Each begins with a space, so that tokens do not reach from one into the next.
    heads = ("".join(blocks[block] for block in (ids or ())[:-1]) for _, ids in rows)
    return [(head + last).strip() or "In" for head, last in zip(heads, lasts, strict=True)]


def _texts(lengths: Sequence[int], seeds: Sequence[str], count: TokenCounter) -> list[str]:
    return fill_texts([""] * len(lengths), [""] * len(lengths), lengths, seeds, count)
