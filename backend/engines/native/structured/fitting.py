"""Chooses columns of a matrix to remove, and fits the others so that they make up for them. Matrices only.

For Y = X W' with G = X'X, the best W of the columns K that stay is W_K + W_R G_RK (G_KK)^-1 (least squares). Removing
the columns S of what is left costs at least tr(W_S ((G^-1)_SS)^-1 W_S'), which ranks them (Hassibi and Stork 1993,
Optimal Brain Surgeon, with a block in place of a weight). The ranking changes as columns go, so they go in rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

DAMPING = 0.01
"""Added to the diagonal of G, as a share of its mean."""
ROUNDS = 4
"""Rounds in which columns are removed; after each the ranking is made anew."""


class Fitted(NamedTuple):
    """The columns that stay, ascending [kept], and the weight of these columns [out, kept]."""

    columns: torch.Tensor
    weight: torch.Tensor


def remove_blocks(weight: torch.Tensor, gram: torch.Tensor, size: int, count: int) -> Fitted:
    """Keep `count` blocks of `size` consecutive columns of `weight` [out, in] fp32 and fit them; `gram` [in, in].

    Nothing changes where all blocks stay.
    """
    import torch

    blocks = torch.arange(weight.shape[1] // size, device=weight.device)
    going = len(blocks) - count
    for number in range(ROUNDS if going > 0 else 0):
        # Remove an equal share in each round, the least important first.
        left = going * (ROUNDS - 1 - number) // ROUNDS
        dropped = len(blocks) - count - left
        columns = columns_of(blocks, size)
        scores = block_scores(fit(weight, gram, columns), gram[columns][:, columns], size)
        staying = scores.argsort(descending=True, stable=True)[: len(blocks) - dropped]
        blocks = blocks[staying.sort().values]
    columns = columns_of(blocks, size)
    return Fitted(columns, fit(weight, gram, columns))


def columns_of(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Return the columns [blocks x size] of the numbered blocks."""
    import torch

    return (blocks[:, None] * size + torch.arange(size, device=blocks.device)).flatten()


def fit(weight: torch.Tensor, gram: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return the weight [out, kept] of the columns that stay, which makes up for the others as well as it can."""
    import torch

    if len(columns) == weight.shape[1]:
        return weight
    going = torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)
    going[columns] = False
    moved = weight[:, going] @ gram[going][:, columns]
    fitted: torch.Tensor = weight[:, columns] + torch.cholesky_solve(moved.T, _factor(gram[columns][:, columns])).T
    return fitted


def block_scores(weight: torch.Tensor, gram: torch.Tensor, size: int) -> torch.Tensor:
    """Return what the output loses at least without each block of columns [blocks]."""
    import torch

    inverse = torch.cholesky_inverse(_factor(gram))
    if size == 1:
        return weight.square().sum(0) / inverse.diagonal()
    scores = []
    for start in range(0, weight.shape[1], size):
        part = slice(start, start + size)
        solved = torch.linalg.solve(inverse[part, part], weight[:, part].T)
        scores.append((weight[:, part].T * solved).sum())
    return torch.stack(scores)


def relative_error(weight: torch.Tensor, gram: torch.Tensor, fitted: Fitted) -> float:
    """Return ||X (W - fitted)'|| / ||X W'||."""
    error = weight.clone()
    error[:, fitted.columns] -= fitted.weight
    lost, whole = (float(((matrix @ gram) * matrix).sum()) for matrix in (error, weight))
    return float((max(lost, 0.0) / max(whole, 1e-30)) ** 0.5)


def _factor(gram: torch.Tensor) -> torch.Tensor:
    """Return the lower Cholesky factor of `gram` with damping. More of it where rounding made it indefinite."""
    import torch

    diagonal = gram.diagonal().mean().clamp(min=1e-12)
    damping = DAMPING
    while True:
        damped = gram + torch.eye(len(gram), device=gram.device) * (damping * diagonal)
        factor: torch.Tensor
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            return factor
        damping *= 10
