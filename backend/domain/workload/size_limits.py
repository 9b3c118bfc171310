"""Limits on the size of a generated workload, checked before anything is generated. Pure.

The figures hold for every caller: a page, the command line and a child process. At four bytes a token, MOST_MADE_TOKENS
are about 80 MB of text; fitting them to a length with a tokenizer takes about 100 s of one processor core.
"""

from __future__ import annotations

from backend.domain.errors import InvalidWorkload
from backend.domain.workload.workload import MOST_LINES

MOST_MADE_TOKENS = 20_000_000
"""Most tokens of all prompts together."""


def fits_limits(prompts: int, tokens: float) -> bool:
    """Tell whether so many prompts, of so many tokens in all, may be generated."""
    return prompts <= MOST_LINES and tokens <= MOST_MADE_TOKENS


def require_generated_size(name: str, prompts: int, tokens: float) -> None:
    """Check the size of a built-in workload that a load needs: `prompts` lines of `tokens` in all.

    Raises InvalidWorkload where it is above the bound.
    """
    if fits_limits(prompts, tokens):
        return
    raise InvalidWorkload(
        f"This load takes {prompts:,} prompts, and of {name} they would have about {tokens / 1e6:,.0f} million "
        f"tokens. At most {MOST_LINES:,} prompts of {MOST_MADE_TOKENS // 1_000_000} million tokens in all are made: "
        "ask for less ({}, {}), or let prompts come round with {}.",
        "requests",
        "repeats",
        "prefix_cache",
    )
