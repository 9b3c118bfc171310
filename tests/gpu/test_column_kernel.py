"""The kernel that decides a block of columns at once gives what the columns give one by one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"


def one_by_one(block, upper, grid, mask):  # type: ignore[no-untyped-def]
    """Fix the columns as Algorithm 1 says, in double precision; return their errors."""
    import torch

    errors = torch.zeros_like(block)
    for number in range(len(block)):
        column = block[number].clone()
        fixed = column
        if grid is not None:
            scales, zeros, groups, low, high = grid
            scale, zero = scales[groups[number]].double(), zeros[groups[number]].double()
            fixed = (torch.clamp(torch.round(column / scale) + zero, low, high) - zero) * scale
        if mask is not None:
            fixed = fixed * mask[number]
        errors[number] = (column - fixed) / upper[number, number]
        block[number] = fixed
        block[number + 1 :] -= upper[number, number + 1 :, None] * errors[number]
    return errors


@pytest.mark.parametrize("count", [32, 96, 128])
@pytest.mark.parametrize("rows", [31, 64, 1000])
@pytest.mark.parametrize("case", ["rounded", "rounded and masked", "masked", "signed"])
def test_a_block_becomes_what_its_columns_become(count: int, rows: int, case: str) -> None:
    import torch

    from backend.engines.native import column_kernel

    # 1. A block of columns [count, rows], the factor of a sound matrix, a grid of 4 bits and a mask.
    generator = torch.Generator().manual_seed(count + rows)
    block = torch.randn(count, rows, generator=generator)
    tokens = torch.randn(4 * count, count, generator=generator).double()
    upper = torch.linalg.cholesky(torch.linalg.inv(tokens.T @ tokens / len(tokens)), upper=True)
    scales = torch.rand(3, rows, generator=generator) * 0.2 + 0.05
    signed = case == "signed"
    zeros = torch.zeros(3, rows) if signed else torch.randint(-8, 8, (3, rows), generator=generator).float()
    groups = torch.randint(0, 3, (count,), generator=generator, dtype=torch.int32)
    grid = None if case == "masked" else (scales, zeros, groups, -8, 7)
    mask = (torch.rand(count, rows, generator=generator) > 0.5).float() if "masked" in case else None

    # 2. Both ways.
    expected = block.double()
    errors = one_by_one(expected, upper, grid, mask)
    fixed = block.to(DEVICE)
    on_device = None if grid is None else (*(part.to(DEVICE) for part in grid[:3]), *grid[3:])
    below = torch.tril(torch.randn(count, count, generator=generator), -1)  # what lies below the diagonal is not read
    on_device_errors = column_kernel.fix(
        fixed, (upper.float() + below).to(DEVICE), on_device, None if mask is None else mask.to(DEVICE)
    )

    # 3. The same, but where a sum in fp32 falls on the other side of an edge between two points.
    same = (fixed.cpu() - expected).abs() < 1e-4
    assert float(same.all(0).float().mean()) > 0.98
    assert torch.allclose(on_device_errors.cpu()[:, same.all(0)].double(), errors[:, same.all(0)], rtol=1e-3, atol=1e-3)
