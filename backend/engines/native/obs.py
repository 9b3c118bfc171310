"""The Optimal Brain Surgeon sweep that GPTQ and SparseGPT share: column after column is fixed, the rest makes up for its error.

GPTQ, Frantar et al. 2022 (arXiv 2210.17323), section 4: all rows in one order (step 1), updates beyond a block of columns in one
product (step 2), the inverse Hessian's rows from a Cholesky factor (step 3). Knows not what a column becomes: that is the
caller's.
"""

from __future__ import annotations

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
    """What columns become. Columns are rows of `columns` here, so that each lies in one piece."""

    def block(self, start: int, columns: torch.Tensor, diagonal: torch.Tensor) -> None:
        """The next columns [block, out], a view that follows all updates; `diagonal` [block] is U's."""

    def column(self, index: int) -> torch.Tensor:
        """What column `index` becomes [out]."""


def sweep(weight: torch.Tensor, factor: Factor, decision: Decision, size: int = BLOCK) -> torch.Tensor:
    """`weight` [out, in] fp32 with every column replaced by what `decision` makes of it and the later ones corrected.

    Column j's error e = (w - kept) / U[j, j] is subtracted from the columns behind it as e x U[j, j+1:] (Algorithm 1).
    """
    columns = weight.T.contiguous()
    for start in range(0, len(columns), size):
        block = columns[start : start + size]
        rows = factor.rows(start, start + len(block))
        decision.block(start, block, rows.diagonal())
        errors = _fix(block, rows[:, : len(block)], decision, start)
        columns[start + len(block) :].addmm_(rows[:, len(block) :].T, errors, alpha=-1)
    return columns.T.contiguous()


def _fix(block: torch.Tensor, rows: torch.Tensor, decision: Decision, start: int) -> torch.Tensor:
    """Fix the columns of one block in place; their errors [block, out]."""
    import torch

    errors, inverse = block.new_empty(block.shape), 1 / rows.diagonal()
    scaled = rows * -inverse[:, None]
    for number, (column, error) in enumerate(zip(block.unbind(), errors.unbind(), strict=True)):
        kept = decision.column(start + number)
        torch.sub(column, kept, out=error)
        column.copy_(kept)
        block[number + 1 :].addr_(scaled[number, number + 1 :], error)
    return errors.mul_(inverse[:, None])


def factor_of(stats: Stats, order: torch.Tensor | None = None, damping: float = DAMPING) -> Factor:
    """The factor for columns taken in `order` [in], or as they stand.

    Of few tokens of a wide input it is made block by block from the tokens themselves, with no [in, in] matrix.
    """
    if stats.rows is not None and 2 * len(stats.rows) <= stats.rows.shape[1]:
        return TokenFactor(stats.rows if order is None else stats.rows[:, order], damping)
    matrix = stats.matrix()
    return GramFactor(matrix if order is None else matrix[order][:, order], damping)


class GramFactor:
    """From X'X [in, in]: with J reversing the order, J X'X J = L L' gives X'X = R R' with R = J L J upper, and U = R^-1."""

    def __init__(self, gram: torch.Tensor, damping: float = DAMPING) -> None:
        self.upper = _inverse(_cholesky(gram.flip(0, 1), damping).flip(0, 1))

    def rows(self, start: int, stop: int) -> torch.Tensor:
        return self.upper[start:stop, start:]


def _inverse(upper: torch.Tensor) -> torch.Tensor:
    """Of an upper triangular matrix, by halves, so that most of the work is products, which are faster than substitution."""
    import torch

    if len(upper) <= BLOCK:
        identity = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
        solved: torch.Tensor = torch.linalg.solve_triangular(upper, identity, upper=True)
        return solved
    half = len(upper) // 2
    inverse = torch.zeros_like(upper, memory_format=torch.contiguous_format)
    inverse[:half, :half], inverse[half:, half:] = _inverse(upper[:half, :half]), _inverse(upper[half:, half:])
    inverse[:half, half:] = -(inverse[:half, :half] @ upper[:half, half:] @ inverse[half:, half:])
    return inverse


def _cholesky(gram: torch.Tensor, damping: float) -> torch.Tensor:
    """L of gram + damping; where rounding has made that indefinite, of ten times the damping, and so on."""
    import torch

    mean = float(gram.diagonal().mean()) or 1.0
    while True:
        damped = gram.clone()
        damped.diagonal().add_(damping * mean)
        lower: torch.Tensor
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not bool(failed):
            return lower
        damping *= 10


class TokenFactor:
    """From X [tokens, in] itself, where it is wider than long: memory for [tokens, tokens] and one block of rows.

    By Woodbury's identity (d + X_F'X_F)^-1 = (1 - X_F' (d + X_F X_F')^-1 X_F) / d over the columns F that are left.
    """

    def __init__(self, inputs: torch.Tensor, damping: float = DAMPING) -> None:
        self.inputs = inputs.double()
        self.damping = damping * (float(self.inputs.square().sum(0).mean()) or 1.0)
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
