"""Experts as a linear each, in place of transformers' tensors of three dimensions, under the names that checkpoints use.

Computes what transformers' own loop over the experts computes; knows no quantization.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.layered.families import Experts

if TYPE_CHECKING:
    import torch


def split(fused: Any, names: Experts) -> Any:
    """A drop-in for a module with fused `gate_up_proj` [experts, 2 x intermediate, hidden]; its children are numbered."""
    from torch import nn

    hidden, width, device = fused.hidden_dim, fused.intermediate_dim, fused.down_proj.device
    activation = (fused.act_fn,)  # in a tuple, so that it is no child: those are the experts

    class Split(nn.ModuleList):
        def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return combined(list(self), names, activation[0], hidden, chosen, weights)

    def linears() -> dict[str, nn.Module]:
        shapes = {names.gate: (hidden, width), names.up: (hidden, width), names.down: (width, hidden)}
        return {name: nn.Linear(*shape, bias=False, device=device) for name, shape in shapes.items()}

    return Split([nn.ModuleDict(linears()) for _ in range(fused.num_experts)])


def combined(
    experts: list[Any], names: Experts, activation: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of the chosen experts [tokens, hidden]; `chosen` and `weights` are [tokens, experts a token]."""
    import torch

    result = torch.zeros_like(hidden)
    for number, expert in enumerate(experts):
        token, place = torch.where(chosen == number)
        if len(token):
            seen = hidden[token]
            inner = activation(expert[names.gate](seen)) * expert[names.up](seen)
            result.index_add_(0, token, (expert[names.down](inner) * weights[token, place, None]).to(result))
    return result
