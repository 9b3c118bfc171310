"""Low-rank adapters beside pruned matrices whose product is masked, so that merging them keeps every zero.

MaskLoRA of PERP (Zimmer et al. 2023, arXiv 2312.15230; `MaskLoRALayer` of the authors' code): a pruned W is used as
W + s M (B A), with M one where W is not zero. LoRA: Hu et al. 2021 (arXiv 2106.09685), section 4.1. Here as torch's
parametrizations of `weight`, so that any module with such a matrix will do. Knows no text and no training.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from backend.domain.errors import WorkError

if TYPE_CHECKING:
    import torch

SCALE = 2.0
"""s: alpha over rank of LoRA; the learning rate was chosen with it."""


class Adapters:
    """Of `paths`, modules of `model` with a `weight` of two dimensions; everything else of the model is frozen.

    At first the product is zero: A is uniform in +- 1/sqrt(columns), seeded by `seed` and the path, and B zero.
    """

    def __init__(self, model: Any, paths: Iterable[str], rank: int, seed: int) -> None:
        from torch.nn.utils import parametrize

        self.model, self.paths = model, sorted(paths)
        model.requires_grad_(False)
        for path in self.paths:
            module = model.get_submodule(path)
            own = (seed * 1_000_003 + zlib.crc32(path.encode())) % 2**63
            parametrize.register_parametrization(module, "weight", masked(module.weight.detach(), rank, own))

    def factor(self, path: str) -> Any:
        return self.model.get_submodule(path).parametrizations.weight[0]

    def parameters(self) -> list[torch.nn.Parameter]:
        """A and B of each path, in order."""
        return [tensor for path in self.paths for tensor in (self.factor(path).a, self.factor(path).b)]

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of A and B, by path."""
        return {f"{path}.{name}": getattr(self.factor(path), name).detach().clone() for path in self.paths for name in ("a", "b")}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        import torch

        with torch.no_grad():
            for path in self.paths:
                for name in ("a", "b"):
                    getattr(self.factor(path), name).copy_(state[f"{path}.{name}"])

    def merged(self, path: str, dtype: torch.dtype) -> torch.Tensor:
        """The matrix with its adapter in it, as the module holds it, in `dtype`. Raises WorkError where it is not finite."""
        import torch

        with torch.no_grad():
            weight: torch.Tensor = self.model.get_submodule(path).weight.to(dtype).cpu()
        if not bool(weight.isfinite().all()):
            raise WorkError(f"{path} is not finite after recovery: lower `learning_rate`.")
        return weight


def masked(weight: torch.Tensor, rank: int, seed: int) -> Any:
    """The parametrization of `weight` [rows, columns]: from it to itself with the masked product added."""
    import torch
    from torch import nn

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rows, columns = weight.shape
            generator = torch.Generator().manual_seed(seed)
            drawn = (2 * torch.rand(rank, columns, generator=generator) - 1) / columns**0.5
            self.a = nn.Parameter(drawn.to(weight.device))
            self.b = nn.Parameter(torch.zeros(rows, rank, device=weight.device))
            self.mask = weight != 0

        def forward(self, original: torch.Tensor) -> torch.Tensor:
            return original + self.mask * (SCALE * self.b @ self.a)

    return Masked()
