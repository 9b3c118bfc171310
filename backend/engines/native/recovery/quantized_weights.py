"""Integer weights of a quantized checkpoint in a whole model in fp32, and the checkpoint with what was learned of them.

A weight is (integer - zero point) x scale, one scale a group. `scales` learns a factor of each scale and leaves the
integers (EfficientQAT, Chen et al. 2024, arXiv 2407.11062, section 3.3; there the scale itself). `weights` learns the
integers too: real numbers in units of the scale, rounded on the way forward, whose gradient passes through the rounding
(LSQ, Esser et al. 2019, arXiv 1902.08153, section 2). They begin where the original's weights lie between two integers,
so that those near the middle change first. A scale is rounded to the type in which it is stored before it is
used, so that what is measured is what is written. Knows no text and no training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import ImpossibleStack, WorkError
from backend.domain.recipe.recovery import NO_EXPERTS, Learned, scale_rate
from backend.engines.native.methods.rounding import Grid, Rounding, compress
from backend.engines.native.recovery.adapters import load, write_changed
from backend.layered.dequantize import CompressedTensorsSource
from backend.layered.outline import Outline

if TYPE_CHECKING:
    import torch

WEIGHTS_RATE = 0.3
"""Learning rate of a weight, in units of its scale, over that of a scale's factor. Thirty times as much let so many
integers change at once that the loss of SmolLM2-135M-Instruct rose (docs/decisions/0069)."""
LEAST_FACTOR = 0.01
"""A scale stays above zero, whatever the learning rate."""
CELL = 0.49
"""The farthest that a weight begins from its integer, in units of its scale."""


class Matrix(NamedTuple):
    """A quantized matrix: the path of its module in transformers' model, and how it is stored."""

    path: str
    rounding: Rounding
    transposed: bool
    """The module holds it [in, out]."""


class QuantizedWeights:
    """A model whose quantized matrices are learned; all else is frozen."""

    def __init__(self, plain: Path, quantized: Path, learn: Learned, device: str) -> None:
        """Load the model of `plain`, a 16-bit checkpoint, with the weights of `quantized`, which was made from it.

        Raises ImpossibleStack for experts, ModelDamaged if either checkpoint cannot be loaded.
        """
        self.folder, self.learn = quantized, learn
        source = CompressedTensorsSource(quantized)
        outline = Outline(source)
        if outline.family.experts is not None:
            raise ImpossibleStack(NO_EXPERTS)
        self.model, _ = load(plain, "cpu")
        self.matrices: dict[str, Matrix] = {}
        """Names of modules in the checkpoint, and the matrix of each."""
        for number in range(outline.count):
            place = f"{outline.family.layers}.{number}"
            # 1. All weights of the layer are those of the quantized checkpoint.
            state, local = self.model.get_submodule(place).state_dict(), outline.stored_names(number)
            before = {path: tensor.clone() for path, tensor in state.items()} if learn == "weights" else {}
            for name, tensor in source.read([name for name, path in local.items() if path in state]):
                state[local[name]].copy_(tensor)
            # 2. Integers take the place of each matrix that is stored so.
            for name, path in local.items():
                module, _, kind = name.rpartition(".")
                rounding = find_rounding(source, module) if kind == "weight" else None
                if rounding is not None:
                    matrix = Matrix(f"{place}.{path.rpartition('.')[0]}", rounding, source.transposed)
                    self.matrices[module] = matrix
                    self._install(matrix, Grid(*source.grid(module)), before.get(path))
        self.model.to(device)

    def _install(self, matrix: Matrix, grid: Grid, original: torch.Tensor | None) -> None:
        """Put integers in place of the matrix; `original` is it before, where the integers are learned too."""
        from torch.nn.utils import parametrize

        module = self.model.get_submodule(matrix.path)
        stored = module.weight.detach().clone()
        parametrization = integers(matrix, grid, self.learn, stored)
        parametrize.register_parametrization(module, "weight", parametrization)
        units = module.parametrizations.weight.original
        if original is not None:
            between = parametrization.units(fit_rows_and_columns(original, stored))
            units.copy_(between.clamp(units - CELL, units + CELL))
            units.requires_grad_(True)

    @property
    def usual_rate(self) -> float:
        """The highest learning rate of the factors where none is given; by the most bits, where matrices differ."""
        return scale_rate(max(int(matrix.rounding.scheme.weights.num_bits) for matrix in self.matrices.values()))

    def named(self) -> dict[str, torch.nn.Parameter]:
        """Return what is learned, in order: the factors of the scales, and the weights where they are learned too."""
        parameters: dict[str, torch.nn.Parameter] = {}
        for name, matrix in self.matrices.items():
            parts = self.model.get_submodule(matrix.path).parametrizations.weight
            parameters[f"{name}.factor"] = parts[0].factor
            if self.learn == "weights":
                parameters[f"{name}.weight"] = parts.original
        return parameters

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Return the optimizer's groups of parameters, with the highest learning rate of each."""
        by_rate: dict[float, list[torch.nn.Parameter]] = {}
        for name, parameter in self.named().items():
            by_rate.setdefault(rate * (WEIGHTS_RATE if name.endswith(".weight") else 1), []).append(parameter)
        return [{"params": parameters, "lr": highest} for highest, parameters in by_rate.items()]

    def write(self, folder: Path) -> None:
        """Write the checkpoint with what was learned, under the same names. Raises DiskFull or WorkError."""
        write_changed(self.folder, folder, dict(self._stored()))

    def _stored(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the stored tensors of each matrix by their names. Raises WorkError if one is not finite."""
        import torch

        for name, matrix in self.matrices.items():
            module = self.model.get_submodule(matrix.path)
            with torch.no_grad():
                weight = module.weight.T if matrix.transposed else module.weight
                grid = module.parametrizations.weight[0].grid()
            if not bool(weight.isfinite().all()):
                raise WorkError(f"{name} is not finite after recovery: lower `learning_rate`.")
            on_processor = Grid(grid.scale.cpu(), grid.zero_point.cpu())
            for part, tensor in compress(weight.cpu().contiguous(), matrix.rounding, on_processor).items():
                yield f"{name}.{part}", tensor


def find_rounding(source: CompressedTensorsSource, module: str) -> Rounding | None:
    """Return how the module's weights are stored, if they are integers beside 16-bit activations; else None."""
    scheme = source.scheme(module)
    if scheme is None or scheme.weights.type != "int" or scheme.input_activations is not None:
        return None
    dtype = source.one(f"{module}.weight_scale").dtype
    return Rounding(scheme, str(scheme.format or source.quantization.format), dtype)


def used_range(weight: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest integer of each group of columns of `weight` [out, in] on `grid`, each [groups,
    1].

    Ternary weights use three of four, and a group of fewer bits some of those that its file has room for: what is
    learned is of the same bits.
    """
    units = weight.reshape(len(weight), grid.scale.shape[1], -1) / grid.scale[..., None]
    codes = (units + grid.zero_point[..., None]).round()
    return codes.amin((0, 2))[:, None], codes.amax((0, 2))[:, None]


def integers(matrix: Matrix, grid: Grid, learn: Learned, weight: torch.Tensor) -> Any:
    """Make the parametrization of a matrix on `grid`: from weights in units of their scale to weights.

    They are [out, in], or turned round where the module holds them so, as `weight` is on the grid.
    """
    import torch
    from torch import nn

    dtype = matrix.rounding.scale_dtype
    least, most = used_range(weight.T if matrix.transposed else weight, grid)

    class Integers(nn.Module):
        scale: torch.Tensor
        zero_point: torch.Tensor
        least: torch.Tensor
        most: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("least", least)
            self.register_buffer("most", most)
            self.register_buffer("scale", grid.scale)
            self.register_buffer("zero_point", grid.zero_point)
            self.factor = nn.Parameter(torch.ones_like(grid.scale))

        def learned_scale(self) -> torch.Tensor:
            """Return the scales [out, groups] as they are stored; gradients pass through their rounding."""
            exact: torch.Tensor = self.scale * self.factor.clamp_min(LEAST_FACTOR)
            return exact + (exact.to(dtype).float() - exact).detach()

        def grid(self) -> Grid:
            return Grid(self.learned_scale(), self.zero_point)

        def forward(self, units: torch.Tensor) -> torch.Tensor:
            rows = units.T if matrix.transposed else units
            grouped = rows.reshape(len(rows), self.scale.shape[1], -1)
            if learn == "weights":
                zero_point = self.zero_point.float()[..., None]
                low, high = self.least - zero_point, self.most - zero_point
                inside = torch.minimum(torch.maximum(grouped, low), high)
                grouped = inside + (inside.round() - inside).detach()
            weight = (grouped * self.learned_scale()[..., None]).view(rows.shape)
            return weight.T.contiguous() if matrix.transposed else weight

        def units(self, weight: torch.Tensor) -> torch.Tensor:
            """Return a weight in units of its scales."""
            rows = weight.T if matrix.transposed else weight
            units = (rows.reshape(len(rows), self.scale.shape[1], -1) / self.scale[..., None]).view(rows.shape)
            return units.T.contiguous() if matrix.transposed else units

        def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
            """Return the integers, less their zero point, of a weight on the grid."""
            return self.units(weight).round()

    return Integers()


def fit_rows_and_columns(weight: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Return `weight` with its rows and columns scaled so that it comes nearest to `stored`, of the same shape.

    A method such as AWQ scales them before it rounds. Least squares in turns find the factors.
    """
    import torch

    fitted = weight
    for dimension in (0, 1, 0, 1):
        squares = (fitted * fitted).sum(dimension, keepdim=True)
        products = (fitted * stored).sum(dimension, keepdim=True)
        fitted = fitted * torch.where(squares > 0, products / squares, torch.ones_like(squares))
    return fitted
