"""The Optimal Brain Surgeon sweep that GPTQ and SparseGPT share: column after column is fixed, the rest makes up for
its error.

GPTQ, Frantar et al. 2022 (arXiv 2210.17323), section 4: all rows in one order (step 1), updates beyond a block of
columns in one product (step 2), the inverse Hessian's rows from a Cholesky factor (step 3). Knows not what a column
becomes: that is the caller's.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Protocol

from backend.engines.native.group import Stats

if TYPE_CHECKING:
    import torch

BLOCK = 128
"""Columns whose updates of the columns behind them are made in one product, the paper's."""

DAMPING = 0.01
"""Added to the diagonal of X'X, as a share of its mean, the paper's (section 4, step 3)."""


class Factor(Protocol):
    """The upper triangular U with (X'X + damping)^-1 = U'U, for columns in the order of processing."""

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """U[start:stop, start:] [stop - start, in - start], fp32; asked in ascending order, each column once."""


class Decision(Protocol):
    """Decides what columns become. They are rows of `columns` here, so that each is contiguous."""

    def block(self, start: int, columns: torch.Tensor, diagonal: torch.Tensor) -> None:
        """Begin a block: `columns` [block, out] is a view that follows all updates; `diagonal` [block] is U's."""

    def column(self, index: int) -> torch.Tensor:
        """Return column `index` [out] as decided."""

    def whole_block(self, columns: torch.Tensor, upper: torch.Tensor) -> torch.Tensor | None:
        """Fix the block at once by a kernel for CUDA, given U's block `upper` [block, block]; return the errors [block,
        out]. None where columns are decided one by one."""


def has_kernel(tensor: torch.Tensor) -> bool:
    """Return whether `column_kernel` can take this tensor: on a CUDA device, with Triton, which torch brings there."""
    return tensor.is_cuda and importlib.util.find_spec("triton") is not None


def sweep(
    weight: torch.Tensor, factor: Factor, decision: Decision, size: int = BLOCK, order: torch.Tensor | None = None
) -> torch.Tensor:
    """Replace every column of `weight` [out, in] fp32 by what `decision` makes of it, and correct the later ones.

    Columns are taken in `order` [in], or as they stand. Column j's error e = (w - kept) / U[j, j] is subtracted from
    the columns behind it as e x U[j, j+1:] (Algorithm 1).
    """
    import torch

    # 1. Columns as rows [in, out], in the order of processing.
    columns = weight.T.contiguous() if order is None else weight.T.contiguous().index_select(0, order)
    # 2. Fix a block; then subtract its errors [block, out] from all columns behind it in one product.
    for start in range(0, len(columns), size):
        block = columns[start : start + size]
        rows = factor.rows(start, start + len(block))
        decision.block(start, block, rows.diagonal())
        square = rows[:, : len(block)]
        errors = decision.whole_block(block, square)
        if errors is None:
            errors = _fix(block, square, decision, start)
        columns[start + len(block) :].addmm_(rows[:, len(block) :].T, errors, alpha=-1)
    # 3. Back to [out, in] and the original order.
    return (columns if order is None else columns.index_select(0, torch.argsort(order))).T.contiguous()


def _fix(block: torch.Tensor, rows: torch.Tensor, decision: Decision, start: int) -> torch.Tensor:
    """Fix the columns of one block in place; return their errors [block, out]."""
    import torch

    errors, inverse = block.new_empty(block.shape), 1 / rows.diagonal()
    scaled = rows * -inverse[:, None]
    for number, (column, error, row) in enumerate(zip(block.unbind(), errors.unbind(), scaled.unbind(), strict=True)):
        fixed = decision.column(start + number)
        torch.sub(column, fixed, out=error)
        column.copy_(fixed)
        block[number + 1 :].addr_(row[number + 1 :], error)
    return errors.mul_(inverse[:, None])


def factor_of(stats: Stats, order: torch.Tensor | None = None) -> Factor:
    """Make the factor for columns in `order` [in], or in their own order.

    Of few tokens of a wide input it is made block by block from the tokens themselves, with no [in, in] matrix.
    """
    if stats.rows is not None and 2 * len(stats.rows) <= stats.rows.shape[1]:
        return TokenFactor(stats.rows if order is None else stats.rows[:, order])
    matrix = stats.matrix()
    return GramFactor(matrix if order is None else matrix.index_select(0, order).index_select(1, order))


class GramFactor:
    """From X'X [in, in]: with J reversing the order, J X'X J = L L' gives X'X = R R' with R = J L J upper, and U =
    R^-1."""

    def __init__(self, gram: torch.Tensor, damping: float = DAMPING) -> None:
        self.upper = _damped_inverse(gram.flip(0, 1), damping).flip(0, 1)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        return self.upper[start:stop, start:]


def _damped_inverse(gram: torch.Tensor, damping: float) -> torch.Tensor:
    """L^-1 of gram + damping = L L'; where rounding has made that indefinite, of ten times the damping, and so on."""
    mean = float(gram.diagonal().mean()) or 1.0
    while True:
        damped = gram.clone()
        damped.diagonal().add_(damping * mean)
        inverse = _inverse_of_factor(damped)
        if inverse is not None:
            return inverse
        damping *= 10


def _inverse_of_factor(matrix: torch.Tensor) -> torch.Tensor | None:
    """L^-1 with `matrix` = L L', None where there is no such L.

    By halves, A = L11 L11', L21 = A21 L11^-T, and so on, so that most of the work is products: LAPACK's factor takes
    several times as long on some processors, and substitution again.
    """
    import torch

    # 1. A small matrix: LAPACK's Cholesky factor, inverted.
    if len(matrix) <= BLOCK:
        lower, failed = torch.linalg.cholesky_ex(matrix)
        identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        solved: torch.Tensor = torch.linalg.solve_triangular(lower, identity, upper=False)
        return None if bool(failed) else solved
    # 2. A large one: both halves by recursion.
    half = len(matrix) // 2
    first = _inverse_of_factor(matrix[:half, :half])
    if first is None:
        return None
    corner = matrix[half:, :half] @ first.T
    second = _inverse_of_factor(torch.addmm(matrix[half:, half:], corner, corner.T, alpha=-1))
    if second is None:
        return None
    # 3. Put the parts together: [[L11^-1, 0], [-L22^-1 L21 L11^-1, L22^-1]].
    inverse = torch.zeros_like(matrix, memory_format=torch.contiguous_format)
    inverse[:half, :half], inverse[half:, half:] = first, second
    inverse[half:, :half] = -(second @ (corner @ first))
    return inverse


class TokenFactor:
    """From X [tokens, in] itself, where it is wider than long: memory for [tokens, tokens] and one block of rows.

    By Woodbury's identity (d + X_F'X_F)^-1 = (1 - X_F' (d + X_F X_F')^-1 X_F) / d over the columns F that are left.
    """

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs.double()
        self.damping = DAMPING * (float(self.inputs.square().sum(0).mean()) or 1.0)
        self.kernel = self.inputs @ self.inputs.T
        self.kernel.diagonal().add_(self.damping)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        import torch

        block, left = self.inputs[:, start:stop], self.inputs[:, start:]
        lower = torch.linalg.cholesky(self.kernel)
        inverse = -(torch.cholesky_solve(block, lower).T @ left) / self.damping
        inverse.diagonal().add_(1 / self.damping)
        self.kernel -= block @ block.T
        corner = torch.linalg.cholesky(inverse[:, : stop - start])
        rows: torch.Tensor = torch.linalg.solve_triangular(corner, inverse, upper=False)
        return rows.float()
