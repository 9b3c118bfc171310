"""The common base of EAGLE-3 and Medusa heads, which read the target's states and propose tokens as certain.

They propose tokens of a reduced vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.recipe.draft_training import Training
from backend.engines.drafts import reduced_vocabulary
from backend.engines.drafts.losses import Loss, through_head
from backend.engines.drafts.proposer import Batch, Proposer, write
from backend.engines.drafts.target import Target
from backend.layered.matrix_products import half_precision

if TYPE_CHECKING:
    import torch

DECAY = 0.8
"""Weight of a proposal in the loss relative to the one before it, since fewer rounds reach it: as Medusa (Cai et al.
2024, arXiv 2401.10774, section 2.2.1) and EAGLE-3 have it."""


class Heads(Proposer):
    """A proposer of which `head` is trained; its output matrix `lm_head` [v, H] begins as rows of the target's own."""

    certain = True
    head: Any

    def __init__(self, target: Target, options: Training) -> None:
        import torch

        super().__init__(target, options)
        self.count = options.tokens
        """Proposals that are learned from."""
        self.vocabulary = torch.arange(min(reduced_vocabulary.SIZE, target.config.vocab_size))
        with torch.random.fork_rng():
            torch.manual_seed(options.seed)
            self.head = self._make()
        self._copy_output()
        self.head.to(target.device).train()

    @abstractmethod
    def _make(self) -> torch.nn.Module:
        """Make the head with initial weights, drawn from torch's global generator."""

    @abstractmethod
    def ahead(self, batch: Batch, count: int) -> list[torch.Tensor]:
        """Return for each of `count` proposals the states [B, T, H] that `lm_head` turns into logits.

        At t they are of the token after t, which is proposal i of the round whose last known token is t - i.
        """

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """Return config.json as vLLM reads it."""

    @abstractmethod
    def maps(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors that say which tokens the reduced vocabulary has."""

    def prepare(self, answers: Sequence[Sequence[int]]) -> None:
        self.vocabulary = reduced_vocabulary.frequent(answers, len(self.vocabulary), self.target.config.vocab_size)
        self._copy_output()

    def _copy_output(self) -> None:
        import torch

        with torch.no_grad():
            self.head.lm_head.weight.copy_(self.target.head[self.vocabulary])

    @property
    def modules(self) -> torch.nn.Module:
        modules: torch.nn.Module = self.head
        return modules

    def loss(self, batch: Batch, loss: Loss) -> torch.Tensor:
        import torch

        # 1. Positions whose next token the head can say, and all that it reads.
        places, count = batch.answers & batch.predicting, self.count
        known = torch.isin(batch.next[places], self.vocabulary.to(batch.tokens.device)).float()
        with half_precision(batch.tokens.device.type):
            target_logits = torch.nn.functional.linear(
                batch.final[places].to(self.target.head.dtype), self.target.head[self.vocabulary]
            )
            states = torch.cat([proposal[places] for proposal in self.ahead(batch, count)])

            # 2. All proposals in one product with the head, the later ones with less weight.
            weights = torch.cat([known * DECAY**number for number in range(count)])
            number = torch.arange(len(known), device=known.device).repeat(count)
            return through_head(
                states, self.head.lm_head.weight, lambda rows: target_logits[number[rows]], loss, weights
            )

    def accepted(self, batch: Batch, tokens: int) -> torch.Tensor:
        import torch

        places = batch.answers & batch.predicting
        accepted = torch.zeros(*places.shape, tokens, device=places.device)
        own = self.vocabulary.to(places.device)
        with torch.no_grad(), half_precision(batch.tokens.device.type):
            for number, states in enumerate(self.ahead(batch, tokens)):
                most = reduced_vocabulary.most_probable(states[places], self.head.lm_head.weight)
                right = torch.zeros(places.shape, device=places.device)
                right[places] = (own[most] == batch.next[places]).float()
                accepted[:, : places.shape[1] - number, number] = right[:, number:]
        return accepted

    def save(self, folder: Path) -> None:
        write(folder, {**self.head.state_dict(), **self.maps()}, self.configuration())

    def described(self) -> dict[str, Any]:
        return {**super().described(), "vocabulary": len(self.vocabulary)}
