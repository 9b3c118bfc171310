"""Tokens that a load has in progress at once: what a server's key-value cache must have room for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.load.options import LevelOptions
from backend.domain.workload.workload import Prompt

BLOCK = 128
"""Tokens in a block of vLLM's cache on a processor; each sequence wastes part of one, and looks ahead into another."""
TEMPLATE_TOKENS = 64
"""Room for what a chat template puts around one turn."""
MARGIN = 1.25


def peak_tokens(prompts: Sequence[Prompt], levels: LevelOptions, longest_answer: int, least: int = 1) -> int | None:
    """Return the most tokens of all streams together, answers counted; None where the number of streams is not known.

    That is an open loop or a search. `least`: the fewest streams, whatever the load. A byte-level vocabulary has no
    token of less than a byte, so the bytes of a prompt bound its tokens from above, loosely.
    """
    if levels.rate or levels.ramp is not None or levels.trace or levels.sweep:
        return None
    longest = sorted((_blocks(prompt, longest_answer) for prompt in prompts), reverse=True)
    streams = max(*levels.concurrency, least)
    most = longest[:streams] + longest[:1] * (streams - len(longest))
    return int(MARGIN * BLOCK * sum(most))


def _blocks(prompt: Prompt, answer: int) -> int:
    turns = len(prompt.turns or (prompt.prompt,))
    words = sum(len(text.encode()) for text in prompt.texts())
    return -(-(words + turns * ((prompt.max_tokens or answer) + TEMPLATE_TOKENS)) // BLOCK) + 1
