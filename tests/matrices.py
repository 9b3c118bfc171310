"""Random matrices and statistics for tests of the native engine's algorithms."""

from __future__ import annotations

from typing import Any

from backend.engines.native.group import Linear, Stats


def generator(seed: int) -> Any:
    import torch

    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(*shape, generator=generator(seed))


def skewed(rows: int, columns: int, seed: int = 0) -> Any:
    """Inputs [rows, columns] that are correlated and whose channels differ in size by orders of magnitude, as a trained
    model's."""
    import torch

    drawn = generator(seed)
    mixed = torch.randn(rows, columns, generator=drawn) @ torch.randn(columns, columns, generator=drawn) / columns**0.5
    return mixed * torch.exp(1.5 * torch.randn(columns, generator=drawn))


def stats_of(inputs: Any, *, as_rows: bool = False) -> Stats:
    """As the engine would collect them."""
    values: dict[str, Any] = {"rows": inputs} if as_rows else {"gram": inputs.T @ inputs}
    if len(inputs) == 0:
        return Stats(0, inputs.new_zeros(inputs.shape[1]), inputs.new_zeros(inputs.shape[1]), **values)
    return Stats(len(inputs), inputs.abs().mean(0), inputs.abs().amax(0), **values)


def linear(weight: Any, stats: Stats, original: Any = None) -> Linear:
    import torch

    rows, columns = torch.ones(weight.shape[0]), torch.ones(weight.shape[1])
    return Linear("linear", weight, weight if original is None else original, rows, columns, stats)
