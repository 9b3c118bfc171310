"""Experts as a linear each, in place of transformers' tensors of three dimensions, under the names that checkpoints use.

Computes what transformers' own loop over the experts computes; knows no quantization.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from backend.engines.native.families import Experts


class SplitExperts(nn.ModuleList):
    """Drop-in for a module with `gate_up_proj` [experts, 2 x intermediate, hidden] and `down_proj`; numbered children."""

    def __init__(self, fused: Any, names: Experts) -> None:
        count, hidden, width = fused.num_experts, fused.hidden_dim, fused.intermediate_dim
        device = fused.down_proj.device
        shapes = {names.gate: (hidden, width), names.up: (hidden, width), names.down: (width, hidden)}

        def linears() -> dict[str, nn.Module]:
            return {name: nn.Linear(*shape, bias=False, device=device) for name, shape in shapes.items()}

        super().__init__([nn.ModuleDict(linears()) for _ in range(count)])
        self.names, self.act_fn = names, fused.act_fn

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """`hidden` [tokens, hidden]; `chosen` and `weights` [tokens, experts a token]."""
        result = torch.zeros_like(hidden)
        for number, expert in enumerate(self):
            token, place = torch.where(chosen == number)
            if len(token):
                gate, up, down = (expert[name] for name in self.names[1:])  # type: ignore[index]
                seen = hidden[token]
                computed = down(self.act_fn(gate(seen)) * up(seen)) * weights[token, place, None]
                result.index_add_(0, token, computed.to(result.dtype))
        return result
