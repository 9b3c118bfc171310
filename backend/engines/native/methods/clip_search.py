"""Clip search of AWQ: a smaller range for each group of weights where that lowers the output error.

Lin et al. 2023 (arXiv 2306.00978) clip after scaling to lower the mean squared error; the grid is that of the authors'
code (`auto_clip.py`): steps of a twentieth of the range, of which at most half is cut away (theirs ends one step
before). They measure a group's output on sampled tokens; here its error e costs e'H e with H the group's block of X'X,
the same over all tokens. They leave queries and keys alone; here a row is clipped only where its whole output error
becomes less, so those are clipped too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backend.engines.native.group import Stats
from backend.engines.native.methods.rounding import (
    Grid,
    Rounding,
    Snapped,
    extremes,
    grid_over,
    in_groups,
    parameters,
    snapped,
)

if TYPE_CHECKING:
    import torch

STEPS = 20
MOST = 0.5
AT_A_TIME = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Weights whose ranges are searched together, by the kind of device: in a processor's cache, or enough for a whole
GPU."""


def search_ranges(
    weight: torch.Tensor, stats: Stats, rounding: Rounding, plain: torch.Tensor | None = None, *, every: int = 1
) -> Snapped:
    """Round `weight` [out, in] on the grid whose ranges [out, groups] are cut to what costs least.

    Groups are weighed apart; a row that loses on the whole X'X keeps its full range, so that clipping never costs.
    `plain` [out] is what the rows lose over their full ranges, where that is known. Rows are independent, and searched
    so many at a time that what is made of them stays small. `every`-th steps are tried first, then the two beside the
    best of them: with 3 that is 6 grids for 11, and may end in a worse one.
    """
    import torch

    # 1. The blocks of X'X [groups, group, group], and how many rows fit in memory.
    blocks = block_grams(stats, in_groups(weight, rounding).shape[-1]) if stats.tokens else None
    together = AT_A_TIME.get(weight.device.type, AT_A_TIME["cuda"])
    whole = rounding.scheme.weights.strategy == "tensor"
    size = len(weight) if whole else max(1, together // weight.shape[1])
    # 2. Search slice by slice.
    values, parts = torch.empty_like(weight), []
    for start in range(0, len(weight), size):
        rows = slice(start, start + size)
        part = _search(weight[rows], stats, blocks, rounding, None if plain is None else plain[rows], every)
        values[rows] = part[0]
        parts.append(part[1:])
    scale, zero_point, losses, before = (torch.cat(slices) for slices in zip(*parts, strict=True))
    return Snapped(values, Grid(scale, zero_point), losses, before)


def _search(
    weight: torch.Tensor,
    stats: Stats,
    blocks: torch.Tensor | None,
    rounding: Rounding,
    plain: torch.Tensor | None,
    every: int,
) -> tuple[torch.Tensor, ...]:
    """Search some rows; return values, scale, zero point, losses, and losses over the full ranges. `blocks` of X'X are
    None if no token was seen."""
    # 1. Round over the full ranges; [rows] loses what `plain` says.
    whole = parameters(weight, rounding)
    values = snapped(weight, whole, rounding)
    if plain is None:
        plain = stats.row_losses(weight - values)
    if blocks is None:
        return values, *whole[:2], plain, plain
    # 2. Round over the ranges [rows, groups] that cost least.
    grid = parameters(weight, rounding, _shrinks(weight, blocks, rounding, every))
    clipped = snapped(weight, grid, rounding)
    after = stats.row_losses(weight - clipped)
    # 3. Keep a clipped row only if its whole output error is smaller.
    better = after <= plain
    return clipped.where(better[:, None], values), *grid.where(better, whole)[:2], after.minimum(plain), plain


def _shrinks(weight: torch.Tensor, blocks: torch.Tensor, rounding: Rounding, every: int) -> torch.Tensor:
    """Return the part of each group's range that costs least [out, groups]."""
    import torch

    low, high = extremes(weight, rounding)

    def losses(part: torch.Tensor) -> torch.Tensor:
        grid = grid_over(low * part, high * part, rounding)
        return _group_losses(in_groups(snapped(weight, grid, rounding).sub_(weight), rounding), blocks)

    # 1. Try every `every`-th step of the range.
    best, least = torch.ones_like(low), torch.full_like(low, torch.inf)
    for step in range(0, int(STEPS * MOST) + 1, every):
        best, least = _better(best, least, torch.full_like(low, 1 - step / STEPS), losses)
    # 2. Try the steps beside the best one.
    coarse = best
    for aside in (-1, 1) if every > 1 else ():
        best, least = _better(best, least, (coarse + aside / STEPS).clamp(1 - MOST, 1.0), losses)
    return best


def _better(
    best: torch.Tensor, least: torch.Tensor, tried: torch.Tensor, losses: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `best` with its losses `least`, or `tried` where that loses less, each [out, groups]."""
    loss = losses(tried)
    better = loss < least
    return tried.where(better, best), loss.where(better, least)


def _group_losses(errors: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Compute e'H e of each group's error e, `errors` [out, groups, group size]: [out, groups]."""
    grouped = errors.transpose(0, 1)
    return ((grouped @ blocks).mul_(grouped)).sum(-1).T


def block_grams(stats: Stats, group: int) -> torch.Tensor:
    """Return the blocks of X'X on its diagonal [groups, group, group]."""
    if stats.rows is not None:
        grouped = stats.rows.view(len(stats.rows), -1, group).transpose(0, 1)
        return grouped.transpose(1, 2) @ grouped
    gram = stats.matrix()
    shaped = gram.view(len(gram) // group, group, len(gram) // group, group)
    return shaped.diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
