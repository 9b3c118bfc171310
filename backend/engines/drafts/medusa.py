"""Medusa heads: one small block for each token ahead, all on the state from which the target said its last token.

Cai et al. 2024 (arXiv 2401.10774), section 2.1.

Block i is `layers` times x + silu(W x); at zero, as at first, it says what the target says. Unlike the authors' heads
all share one output matrix over a reduced vocabulary (`original_lm_head` of vLLM, `model_executor/models/medusa.py`),
since on a processor reading a matrix for each would cost more than it gives. A block knows neither the token just said
nor the one proposed before its own, so heads are accepted less than an EAGLE-3 head and cost less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.engines.drafts.draft_heads import Heads
from backend.engines.drafts.proposer import Batch

if TYPE_CHECKING:
    import torch

LAYERS = 1
"""Layers per block if the options name none, as the authors have it."""


class Medusa(Heads):
    """The heads as a proposer."""

    def _make(self) -> torch.nn.Module:
        from torch import nn

        size, head = self.target.embedding.shape[1], nn.Module()
        head.blocks = nn.ModuleList()
        for _ in range(self.options.tokens):
            block = nn.Module()
            block.layers = nn.ModuleList(
                nn.Linear(size, size, bias=False) for _ in range(self.options.layers or LAYERS)
            )
            head.blocks.append(block)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        head.lm_head = nn.Linear(size, len(self.vocabulary), bias=False)
        return head

    def ahead(self, batch: Batch, count: int) -> list[torch.Tensor]:
        """Run `count` blocks; block i at t has read the state of position t - 1 - i."""
        import torch

        states = []
        for number, block in enumerate(self.head.blocks[:count]):
            state = batch.final[:, : -1 - number].float()
            for linear in block.layers:
                state = state + torch.nn.functional.silu(linear(state))
            states.append(torch.nn.functional.pad(state, (0, 0, 1 + number, 0)))
        return states

    def maps(self) -> dict[str, torch.Tensor]:
        return {"token_map": self.vocabulary}

    def configuration(self) -> dict[str, Any]:
        # The fields that vLLM's medusa.py reads.
        size, whole = self.target.embedding.shape[1], self.target.config.vocab_size
        blocks = {
            "num_heads": self.options.tokens,
            "num_hidden_layers": self.options.layers or LAYERS,
            "medusa_fc_bias": False,
        }
        tokens = {"vocab_size": whole, "truncated_vocab_size": len(self.vocabulary), "original_lm_head": True}
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "dtype": "bfloat16",
            "hidden_size": size,
            **blocks,
            **tokens,
        }
