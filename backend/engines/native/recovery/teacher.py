"""The original model as the teacher of a recovery: its next-token logits for the sequences of the training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.recipe.recovery import KEPT_SEQUENCES
from backend.engines.native.recovery.adapters import load

if TYPE_CHECKING:
    import torch


class Teacher:
    """The original, in fp32 and frozen.

    What enters its output head is kept for the first `KEPT_SEQUENCES` sequences, so that one which comes again costs
    the head alone. A sequence goes through the layers by itself: its numbers do not depend on those beside it, and a
    run that was stopped goes on with the same ones. A model that changes the logits after its head, as with a soft
    cap, is run whole each time.
    """

    def __init__(self, folder: Path, device: str) -> None:
        """Load the model of `folder`. Raises ModelDamaged as `load`."""
        self.model = load(folder, device)[0]
        self.device = device
        self.head: Any = None
        """The output head, once it was taken off; None before the first sequence, and where the model runs whole."""
        self.tried = False
        self.kept: dict[bytes, torch.Tensor] = {}
        """Inputs of the head [1, length, hidden size], on the processor, by the sequence's tokens."""

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [sequences, length, vocabulary] of `tokens` [sequences, length]."""
        import torch

        with torch.no_grad():
            if not self.tried:
                self._take_off_head(tokens[:1])
            if self.head is None:
                whole: torch.Tensor = self.model(tokens, use_cache=False).logits
                return whole
            entering: torch.Tensor = self.head(torch.cat([self._entering(row) for row in tokens]))
            return entering

    def _take_off_head(self, first: torch.Tensor) -> None:
        """Take the head off, unless the logits are more than what it gives."""
        import torch

        self.tried = True
        whole, head = self.model(first, use_cache=False).logits, self.model.get_output_embeddings()
        if head is None:
            return
        self.model.set_output_embeddings(torch.nn.Identity())
        if torch.equal(head(self.model(first, use_cache=False).logits), whole):
            self.head = head
        else:
            self.model.set_output_embeddings(head)

    def _entering(self, row: torch.Tensor) -> torch.Tensor:
        """Return what enters the head for one sequence [length]."""
        key = row.cpu().numpy().tobytes()
        known = self.kept.get(key)
        if known is not None:
            return known.to(self.device)
        states: torch.Tensor = self.model(row[None], use_cache=False).logits
        if len(self.kept) < KEPT_SEQUENCES:
            self.kept[key] = states.cpu()
        return states
