"""Takes apart what transformers fuses: the experts of a layer, which checkpoints and algorithms have as linears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.layered.families import Experts

if TYPE_CHECKING:
    import torch


def split_experts(fused: Any, names: Experts) -> Any:
    """Make a drop-in for a module with fused `gate_up_proj` [experts, 2 x intermediate, hidden].

    Its numbered children are the experts, with a linear for each of `names`.
    """
    from torch import nn

    hidden, width, device = fused.hidden_dim, fused.intermediate_dim, fused.down_proj.device
    activation = (fused.act_fn,)  # in a tuple, so that it is no child: those are the experts

    class Split(nn.ModuleList):
        def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return combined_experts(list(self), names, activation[0], hidden, chosen, weights)

    class Unfilled(nn.Linear):
        """Without random values, which take most of the time that tens of thousands of linears on the meta device
        take."""

        def reset_parameters(self) -> None:
            pass

    def linears() -> dict[str, nn.Module]:
        shapes = {names.gate: (hidden, width), names.up: (hidden, width), names.down: (width, hidden)}
        return {name: Unfilled(*shape, bias=False, device=device) for name, shape in shapes.items()}

    return Split([nn.ModuleDict(linears()) for _ in range(fused.num_experts)])


def combined_experts(
    experts: list[Any],
    names: Experts,
    activation: Any,
    hidden: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Sum the chosen experts by weight [tokens, hidden]; `chosen` and `weights` are [tokens, experts per token]."""
    import torch

    result = torch.zeros_like(hidden)
    for number, expert in enumerate(experts):
        token, place = torch.where(chosen == number)
        # Run the tokens that chose this expert, and add its output by their weights.
        if len(token):
            routed = hidden[token]
            inner = activation(expert[names.gate](routed)) * expert[names.up](routed)
            result.index_add_(0, token, (expert[names.down](inner) * weights[token, place, None]).to(result))
    return result
