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


class Acceptance(NamedTuple):
    """Expected counts: rounds, and of each position of a round the proposals accepted."""

    rounds: float
    accepted: tuple[float, ...]

    @property
    def by_position(self) -> tuple[float, ...]:
        """The share of rounds in which the token at each position was accepted, as vLLM counts it."""
        return tuple(each / self.rounds if self.rounds else 0.0 for each in self.accepted)

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
    """Compute the probability [N] that the token `answered` [N] was accepted from a draft with these logits [N, V] of a
    target with those.

    `temperature` [N]. `certain`: the draft proposes its most probable token without a distribution, whatever the
    temperature.
    """
    import torch

    most = (draft.argmax(-1) == answered).float()
    if certain:
        return most
    warm = temperature.clamp_min(1e-5).unsqueeze(-1)
    place = answered.unsqueeze(-1)
    q, p = ((logits.float() / warm).log_softmax(-1).gather(-1, place).squeeze(-1) for logits in (draft, target))
    return torch.where(temperature > 0, (q - p).clamp_max(0.0).exp(), most)


def acceptance_of_states(
    answered: torch.Tensor,
    states: torch.Tensor,
    head: torch.Tensor,
    final: torch.Tensor,
    target: Callable[[torch.Tensor], torch.Tensor],
    temperature: torch.Tensor,
    *,
    certain: bool,
) -> torch.Tensor:
    """Compute `acceptance_probability` [N] for the draft's states [N, h] and its head [V, h], and of the target's last
    states [N, H], which `target` makes logits of, `ROWS` at a time."""
    import torch

    parts = [slice(start, start + ROWS) for start in range(0, len(answered), ROWS)]
    probabilities = [
        acceptance_probability(
            answered[rows], states[rows] @ head.T, target(final[rows]), temperature[rows], certain=certain
        )
        for rows in parts
    ]
    return torch.cat(probabilities) if probabilities else states.new_zeros(0, dtype=torch.float32)


def chained(accepted: torch.Tensor, tokens: int) -> torch.Tensor:
    """[B, T, tokens] of a draft that reads nothing but tokens, from [B, T]: of position t that the token after it is
    accepted."""
    import torch

    length = accepted.shape[1]
    padded = torch.nn.functional.pad(accepted, (0, tokens))
    return torch.stack([padded[:, ahead : ahead + length] for ahead in range(tokens)], -1)


def walk(accepted: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor) -> Acceptance:
    """The rounds of answers. `accepted` [B, T, k]: of a round whose last known token is t, that the token at t + 1 + i
    is accepted where those before it were. `begins`, `ends` [B]: the first token of the answer, which the target says
    itself, and its last.

    A round that reaches beyond the end counts nowhere: what would have been proposed there is not known.
    """
    import torch

    size, length, tokens = accepted.shape
    whole = accepted.double().cumprod(-1)
    refused = torch.cat([torch.ones_like(whole[..., :1]), whole], -1)
    refused[..., :-1] -= whole  # [B, T, k + 1]: that exactly so many are accepted
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
