"""The reduced vocabulary of a head: the most frequent tokens of the target's answers, and maps to the target's tokens.

What a head reads most of at a step is its output matrix; a few thousand tokens make nearly all of what a model says
(FR-Spec, Zhao et al. 2025, arXiv 2502.14856).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from backend.domain.needs.draft_training_needs import ROWS

if TYPE_CHECKING:
    import torch

SIZE = 8192


def frequent(answers: Iterable[Iterable[int]], size: int, whole: int) -> torch.Tensor:
    """Choose the `size` tokens of `whole` that are most frequent in `answers`, in rising order.

    Of equally frequent ones, and of those that occur nowhere, the lower, which tokenizers learned earlier.
    """
    import torch

    counts = Counter(chain.from_iterable(answers))
    return torch.tensor(sorted(sorted(range(whole), key=lambda token: (-counts[token], token))[:size]))


def maps(tokens: torch.Tensor, whole: int) -> dict[str, torch.Tensor]:
    """Make the maps that EAGLE-3 checkpoints have; none if all tokens are in it, since vLLM has no place for them then.

    `d2t` [size] is what is added to a draft's token to make the target's, `t2d` [whole] is true for the target's tokens
    that are in it.
    """
    import torch

    if len(tokens) == whole:
        return {}

    among = torch.zeros(whole, dtype=torch.bool)
    among[tokens] = True
    return {"d2t": tokens - torch.arange(len(tokens)), "t2d": among}


def most_probable(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Return the row of `head` [V, h] that each of `states` [N, h] makes most probable [N], `ROWS` at a time."""
    import torch

    parts = [(part @ head.T).argmax(-1) for part in torch.split(states, ROWS)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)
