"""The columns of one block of an Optimal Brain Surgeon sweep, decided by one CUDA kernel in place of eight a column.

A layer of an 8B model has 26,624 columns: at eight kernels a column, starting them takes longer than what they compute.
It needs Triton, which torch for CUDA brings. The same arithmetic in fp32 as that of
`brain_surgeon.sweep` column by column; sums differ in their last digit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROWS = 32
"""Rows of the weight that one program takes, a thread each."""


@cache
def _kernel() -> Any:
    """Return the kernel. Triton reads the source of what it compiles: that is whole here, with its own
    annotations alone."""
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def fix_columns(  # type: ignore[no-untyped-def]
        columns,
        errors,
        upper,
        scales,
        zeros,
        groups,
        mask,
        rows,
        count: tl.constexpr,
        low,
        high,
        rounds: tl.constexpr,
        masked: tl.constexpr,
        size: tl.constexpr,
        width: tl.constexpr,
    ) -> None:
        # 1. The block's columns [size, width] of this program's rows; columns beyond `count` are zero.
        row = tl.program_id(0) * width + tl.arange(0, width)
        inside = row < rows
        place = tl.arange(0, size)
        present = (place < count)[:, None] & inside[None, :]
        block = tl.load(columns + place[:, None] * rows + row[None, :], mask=present, other=0.0)

        for number in range(count):
            # 2. The column [width] as it is now, and what it becomes: a point of its grid, or zero where it is masked.
            column = tl.sum(tl.where(place[:, None] == number, block, 0.0), axis=0)
            fixed = column
            if rounds:
                group = tl.load(groups + number)
                scale = tl.load(scales + group * rows + row, mask=inside, other=1.0)
                zero = tl.load(zeros + group * rows + row, mask=inside, other=0.0)
                # 2a. Clamped before it is rounded: adding 1.5 x 2^23 and taking it away then rounds half to even.
                point = tl.div_rn(column, scale)
                point = tl.minimum(tl.maximum(point, low - zero - 1.0), high - zero + 1.0)
                point = (point + 12582912.0) - 12582912.0
                fixed = (tl.minimum(tl.maximum(point + zero, low), high) - zero) * scale
            if masked:
                fixed = fixed * tl.load(mask + number * rows + row, mask=inside, other=0.0)

            # 3. The error [width], which the columns behind it make up for.
            inverse = 1.0 / tl.load(upper + number * count + number)
            error = (column - fixed) * inverse
            behind = tl.load(upper + number * count + place, mask=(place > number) & (place < count), other=0.0)
            block = block - behind[:, None] * error[None, :]
            tl.store(columns + number * rows + row, fixed, mask=inside)
            tl.store(errors + number * rows + row, error, mask=inside)

    return fix_columns


def fix(
    block: torch.Tensor,
    upper: torch.Tensor,
    grid: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int] | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Fix the columns of `block` [count, out] fp32 in place, one after the other; return their errors [count, out].

    `upper` [count, count] is the block of the inverse's factor, of which what lies on and above the diagonal is read.
    With `grid`, which is (scales [groups, out], zero points [groups, out], the group of each column [count] int32,
    lowest and highest integer), columns are rounded. `mask` [count, out] is 1 where a weight is kept and 0 where it
    becomes zero.
    """
    import torch
    import triton

    # 1. What the kernel reads.
    count, rows = block.shape
    if not block.is_contiguous():
        raise ValueError("the kernel writes into contiguous columns")
    upper, errors = upper.contiguous(), torch.empty_like(block)
    scales, zeros, groups, low, high = grid if grid is not None else (block, block, block, 0, 0)
    # 2. A program for every so many rows.
    _kernel()[(triton.cdiv(rows, ROWS),)](
        block,
        errors,
        upper,
        scales,
        zeros,
        groups,
        block if mask is None else mask,
        rows,
        count,
        float(low),
        float(high),
        rounds=grid is not None,
        masked=mask is not None,
        size=triton.next_power_of_2(count),
        width=ROWS,
        num_warps=1,
    )
    return errors
