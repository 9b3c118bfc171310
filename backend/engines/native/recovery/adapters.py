"""Low-rank adapters beside the pruned matrices of a whole model in fp32, and the checkpoint with them merged.

The product of an adapter is masked, so that merging keeps every zero: MaskLoRA of PERP (Zimmer et al. 2023, arXiv
2312.15230; `MaskLoRALayer` of the authors' code): a pruned W is used as W + s M (B A), with M one where W is not zero.
LoRA: Hu et al. 2021 (arXiv 2106.09685), section 4.1. Masked ones are torch's parametrizations of `weight`, so any
module with such a matrix will do. Knows no text and no training.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from backend import files
from backend.domain.errors import ImpossibleStack, ModelDamaged, WorkError
from backend.domain.recipe.recovery import NO_EXPERTS, adapter_rate
from backend.engines.native.files.checkpoint import check_plain, write_part
from backend.layered.outline import Outline
from backend.layered.weight_source import WeightSource, weight_files

if TYPE_CHECKING:
    import torch


def load(
    folder: Path, device: str, linears: Collection[str] = (), *, stored: bool = False
) -> tuple[Any, dict[str, str]]:
    """Load the model, frozen and in evaluation mode; return it and the path of its module for each of `linears`.

    It is in fp32, or as it is `stored`. Raises ImpossibleStack for experts, which transformers holds as one tensor, and
    for quantized weights; ModelDamaged if it cannot be loaded.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    # 1. Refuse what cannot be trained.
    logging.disable_progress_bar()
    check_plain(folder)
    paths = _paths(folder, linears) if linears else {}

    # 2. Load the whole model.
    dtype = "auto" if stored else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        first = str(error).partition("\n")[0]
        raise ModelDamaged(
            f"The model in {folder.name} cannot be loaded for training ({first}): make it again."
        ) from None
    return model.eval().requires_grad_(False).to(device), paths


def _paths(folder: Path, linears: Collection[str]) -> dict[str, str]:
    """Return the path of each linear in transformers' model, by its name in the checkpoint."""
    outline = Outline(WeightSource(folder))
    if outline.family.experts is not None:
        raise ImpossibleStack(NO_EXPERTS)
    known: dict[str, str] = {}
    for number in range(outline.count):
        for group in outline.family.groups:
            for name in group.linears:
                known[outline.stored_name(number, name)] = f"{outline.family.layers}.{number}.{name}"
    return {name: known[name] for name in linears}


def write_changed(source: Path, folder: Path, changed: Mapping[str, torch.Tensor]) -> None:
    """Write the checkpoint in `source` with the tensors of `changed` in place of its own, file by file.

    Raises DiskFull or WorkError.
    """
    from safetensors.torch import load_file

    # 1. The weights.
    for file in weight_files(source):
        tensors = load_file(file)
        write_part(folder / file.name, {name: changed.get(name, tensor) for name, tensor in tensors.items()})

    # 2. All else, config.json last: before it the folder is no model.
    others = [path for path in sorted(source.iterdir()) if path.is_file() and path.suffix != ".safetensors"]
    for file in sorted(others, key=lambda file: file.name == "config.json"):
        files.copy(file, folder / file.name)


class PrunedWeights:
    """A pruned model whose matrices are learned by adapters; all else is frozen."""

    def __init__(
        self, folder: Path, linears: Collection[str], rank: int, seed: int, device: str, *, keep_zeros: bool = True
    ) -> None:
        """Load the model of `folder`. Raises ImpossibleStack and ModelDamaged as `load`."""
        self.folder, self.rank = folder, rank
        self.model, self.paths = load(folder, device, linears)
        self.adapters = Adapters(self.model, self.paths.values(), rank, seed, keep_zeros=keep_zeros)

    @property
    def usual_rate(self) -> float:
        """The highest learning rate where none is given."""
        return adapter_rate(self.model.config.get_text_config().hidden_size, self.rank)

    def named(self) -> dict[str, torch.nn.Parameter]:
        """Return what is learned, in order."""
        return self.adapters.named()

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Return the optimizer's groups of parameters, with the highest learning rate of each."""
        return [{"params": list(self.named().values()), "lr": rate}]

    def write(self, folder: Path) -> None:
        """Write the checkpoint with the adapters merged, under the same names. Raises DiskFull or WorkError."""
        source, merged = WeightSource(self.folder), {}
        for name, path in self.paths.items():
            dtype = source.one(f"{name}.weight").dtype
            merged[f"{name}.weight"] = self.adapters.merged(path, dtype)
        write_changed(self.folder, folder, merged)


SCALE = 2.0
"""s: alpha over rank of LoRA; the learning rate was chosen with it."""


class Factors(NamedTuple):
    """Two factors that are learned; their product B A is added to a matrix [rows, columns], SCALE times."""

    a: torch.nn.Parameter
    """[rank, columns]"""
    b: torch.nn.Parameter
    """[rows, rank]"""


class Adapters:
    """Low-rank adapters of `paths`, modules of `model` with a `weight` of two dimensions; all else is frozen.

    At first the product is zero: A is uniform in +- 1/sqrt(columns), seeded by `seed` and the path, and B zero. With
    `keep_zeros` the product is masked and added to the matrix. Without it nothing needs the whole product: a linear's
    input goes through the two factors beside its matrix, as in LoRA, which spares the gradient of the matrix, a third
    of the operations of a step.
    """

    def __init__(self, model: Any, paths: Iterable[str], rank: int, seed: int, *, keep_zeros: bool = True) -> None:
        self.model, self.paths = model, sorted(paths)
        self.factors: dict[str, Factors] = {}
        model.requires_grad_(False)
        for path in self.paths:
            module = model.get_submodule(path)
            own = (seed * 1_000_003 + zlib.crc32(path.encode())) % 2**63
            factors = _draw_factors(module.weight, rank, own)
            if keep_zeros or not _add_beside(module, factors):
                _add_masked(module, factors)
            self.factors[path] = factors

    def named(self) -> dict[str, torch.nn.Parameter]:
        """Return A and B of each path, in order."""
        return {
            f"{path}.{name}": factor for path in self.paths for name, factor in self.factors[path]._asdict().items()
        }

    def merged(self, path: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix with its adapter in it, in `dtype`. Raises WorkError if it is not finite."""
        import torch
        from torch.nn.utils import parametrize

        module, factors = self.model.get_submodule(path), self.factors[path]
        with torch.no_grad():
            whole = module.weight if parametrize.is_parametrized(module) else module.weight + _product(factors)
            weight: torch.Tensor = whole.to(dtype).cpu()
        if not bool(weight.isfinite().all()):
            raise WorkError(f"{path} is not finite after recovery: lower `learning_rate`.")
        return weight


def _draw_factors(weight: torch.Tensor, rank: int, seed: int) -> Factors:
    """Draw A for `weight` [rows, columns]; B is zero, so that the product is zero at first."""
    import torch

    rows, columns = weight.shape
    generator = torch.Generator().manual_seed(seed)
    drawn = (2 * torch.rand(rank, columns, generator=generator) - 1) / columns**0.5
    zeros = torch.zeros(rows, rank, device=weight.device)
    return Factors(torch.nn.Parameter(drawn.to(weight.device)), torch.nn.Parameter(zeros))


def _product(factors: Factors) -> torch.Tensor:
    """Multiply the factors: [rows, columns], scaled."""
    product: torch.Tensor = SCALE * factors.b @ factors.a
    return product


def _add_masked(module: Any, factors: Factors) -> None:
    """Add the product to the module's matrix, but where that is zero: the mask keeps what was pruned at zero."""
    from torch import nn
    from torch.nn.utils import parametrize

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = factors
            self.mask = module.weight.detach() != 0

        def forward(self, original: torch.Tensor) -> torch.Tensor:
            changed: torch.Tensor = original + self.mask * _product(factors)
            return changed

    parametrize.register_parametrization(module, "weight", Masked())


def _add_beside(module: Any, factors: Factors) -> bool:
    """Add to the module's output what its input gives through the factors; return False where its kind is not known."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    if not isinstance(module, nn.Linear | Conv1D):
        return False
    whole = isinstance(module, Conv1D)

    # A linear multiplies by the transposed matrix, GPT-2's by the matrix itself.
    def add(_: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
        first, second = (factors.b, factors.a) if whole else (factors.a.T, factors.b.T)
        return output + SCALE * (inputs[0] @ first) @ second

    module.register_forward_hook(add)
    return True
