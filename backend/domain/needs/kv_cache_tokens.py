"""Tokens that a load has in progress at once, for which a server's key-value cache must have room, and the cache that
our servers reserve on a processor. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.load.options import LevelOptions
from backend.domain.workload.workload import Prompt

BLOCK = 128
"""Tokens in a block of vLLM's cache on a processor; each sequence wastes part of one, and looks ahead into another."""
TEMPLATE_TOKENS = 64
"""Room for what a chat template puts around one turn."""
MARGIN = 1.25
RESERVED_SEQUENCES = 32
"""Full-length sequences that the cache is sized for if the recipe does not say; more wait in vLLM's queue."""
MOST_RESERVED_BYTES = 4 << 30
POOL_SLOTS = 4
"""Requests that llama.cpp answers at one time where neither the recipe nor the load says; more wait in its queue."""


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


def sequence_bytes(token_bytes: int, length: int) -> int:
    """Return the bytes of a sequence of `length` tokens, in whole blocks and one to look ahead into."""
    return token_bytes * BLOCK * (-(-length // BLOCK) + 1)


def reserved_bytes(token_bytes: int, length: int, max_num_seqs: int | None) -> int:
    """Return the bytes of cache that a server here reserves for sequences of `length` tokens.

    At most MOST_RESERVED_BYTES, but always enough for two sequences.
    """
    sequence = sequence_bytes(token_bytes, length)
    many = min(max_num_seqs or RESERVED_SEQUENCES, RESERVED_SEQUENCES)
    return max(2 * sequence, min(sequence * many, MOST_RESERVED_BYTES))


def pooled_tokens(token_bytes: float, length: int, slots: int) -> int:
    """Return the tokens of the one pool that llama.cpp's slots share, where the load is not known.

    A sequence of `length` tokens for each slot, within MOST_RESERVED_BYTES, but at least one.
    """
    fitting = int(MOST_RESERVED_BYTES / token_bytes) if token_bytes else 0
    return max(length, min(length * slots, fitting))
