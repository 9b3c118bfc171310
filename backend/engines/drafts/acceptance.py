"""Computes how much of a draft a server would accept on answers of the target: vLLM's rule, replayed without sampling.

vLLM (`v1/sample/rejection_sampler.py`) accepts a proposed token x with probability min(1, p(x) / q(x)), where the draft
sampled it from q, and says a token of the target's own instead where it does not (Leviathan et al. 2023, arXiv
2211.17192, algorithm 1). So of a token x that the target's answer has, the probability that it came from the draft is
min(1, q(x) / p(x)); at temperature 0, and of a draft that proposes its most probable token as certain, it is one where
that token is x, else zero. Given these, a round that begins anywhere is a product, and an answer a chain of rounds:
expectations are exact, nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from backend.domain.needs.draft_training_needs import ROWS

if TYPE_CHECKING:
    import torch


Logits = Callable[[slice], "torch.Tensor"]
"""Returns the logits [rows, V] of some positions."""


class Acceptance(NamedTuple):
    """Expected counts: rounds, and of each position of a round the proposals accepted."""

    rounds: float
    accepted: tuple[float, ...]

    @property
    def by_position(self) -> tuple[float, ...]:
        """The share of rounds in which the token at each position was accepted, as vLLM counts it."""
        return tuple(count / self.rounds if self.rounds else 0.0 for count in self.accepted)

    @property
    def rate(self) -> float:
        """Accepted of all proposed tokens."""
        return sum(self.by_position) / len(self.accepted)

    @property
    def length(self) -> float:
        """Tokens a round: those accepted, and the target's own."""
        return 1.0 + sum(self.by_position)


def total(parts: Iterable[Acceptance]) -> Acceptance:
    """Sum the counts. Raises ValueError if there are none."""
    first, *others = parts
    for other in others:
        both = tuple(a + b for a, b in zip(first.accepted, other.accepted, strict=True))
        first = Acceptance(first.rounds + other.rounds, both)
    return first


def acceptance_probability(
    answered: torch.Tensor, draft: torch.Tensor, target: torch.Tensor, temperature: torch.Tensor, *, certain: bool
) -> torch.Tensor:
    """Compute the probability [N] that a proposal of the draft became the token `answered` [N].

    `draft` and `target` are logits [N, V], `temperature` is [N]. `certain`: the draft proposes its most probable token
    without a distribution, whatever the temperature.
    """
    import torch

    # 1. A certain or greedy draft proposes one token: it is the answered one, or not.
    most = (draft.argmax(-1) == answered).float()
    if certain:
        return most

    # 2. A drawn one was accepted with probability min(1, q / p).
    warm = temperature.clamp_min(1e-5).unsqueeze(-1)
    place = answered.unsqueeze(-1)
    q, p = ((logits.float() / warm).log_softmax(-1).gather(-1, place).squeeze(-1) for logits in (draft, target))
    return torch.where(temperature > 0, (q - p).clamp_max(0.0).exp(), most)


def acceptance_by_rows(
    answered: torch.Tensor, draft: Logits, target: Logits, temperature: torch.Tensor, *, certain: bool
) -> torch.Tensor:
    """Compute `acceptance_probability` [N], `ROWS` positions at a time: all logits are never in memory together."""
    import torch

    probabilities = [torch.zeros(0, device=answered.device)]
    for start in range(0, len(answered), ROWS):
        rows = slice(start, start + ROWS)
        probabilities.append(
            acceptance_probability(answered[rows], draft(rows), target(rows), temperature[rows], certain=certain)
        )
    return torch.cat(probabilities)


def chained(accepted: torch.Tensor, tokens: int) -> torch.Tensor:
    """Make [B, T, tokens], as `walk` takes it, from [B, T] of a draft that reads nothing but tokens.

    At position t is the probability that the token after it is accepted.
    """
    import torch

    length = accepted.shape[1]
    padded = torch.nn.functional.pad(accepted, (0, tokens))
    return torch.stack([padded[:, ahead : ahead + length] for ahead in range(tokens)], -1)


def walk(accepted: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor) -> Acceptance:
    """Walk the rounds of answers and return what is expected of them.

    `accepted` [B, T, k]: of a round whose last known token is t, the probability that the token at t + 1 + i is
    accepted if those before it were. `begins`, `ends` [B]: the first token of the answer, which the target says itself,
    and its last. A round that reaches beyond the end counts nowhere: what it would have proposed is not known.
    """
    import torch

    # 1. Of a round that begins at t: that so many are accepted at least, and that exactly so many are [B, T, k + 1].
    size, length, tokens = accepted.shape
    whole = accepted.double().cumprod(-1)
    refused = torch.cat([torch.ones_like(whole[..., :1]), whole], -1)
    refused[..., :-1] -= whole

    # 2. That a round begins at each position: the first at `begins`, each next one where the one before ended.
    here = torch.zeros(size, length + tokens + 1, dtype=torch.double, device=accepted.device)
    here[torch.arange(size, device=accepted.device), begins] = 1.0
    rounds, counts = torch.zeros((), dtype=torch.double), torch.zeros(tokens, dtype=torch.double)
    for position in range(length):
        inside = (position + tokens <= ends) & (position >= begins)
        started = here[:, position] * inside
        rounds += started.sum().cpu()
        counts += (started[:, None] * whole[:, position]).sum(0).cpu()
        here[:, position + 1 : position + tokens + 2] += started[:, None] * refused[:, position]
    return Acceptance(float(rounds), tuple(counts.tolist()))
