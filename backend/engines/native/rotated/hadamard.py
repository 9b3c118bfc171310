"""Orthogonal maps that spread a large value over all channels: random signs, then a Hadamard matrix (QuaRot).

No matrix of the whole size is made: doublings are sums and differences, n log n of them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from backend.domain.errors import ImpossibleStack
from backend.domain.maths.hadamard import HadamardFactors, find_factors

if TYPE_CHECKING:
    import torch


ROWS = 4096
"""Rows that are rotated at a time, in double precision."""


class Rotation:
    """x -> x Q for rows x of `size` channels: Q = D H / sqrt(size), D random signs, H a Hadamard matrix.

    Raises ImpossibleStack for a size that has no such matrix here.
    """

    def __init__(self, size: int, seed: int) -> None:
        import torch

        factors = find_factors(size)
        if factors is None:
            raise ImpossibleStack(f"No Hadamard matrix of order {size} is made here: leave `rotate` out.")
        self.factors, self.size = factors, size
        drawn = torch.Generator().manual_seed(seed)
        self.signs = torch.randint(0, 2, (size,), generator=drawn).double() * 2 - 1

    def columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return tensor Q [..., size] in single precision, computed in double: what a matrix that reads the rotated
        state has in its place."""
        import torch

        rows = torch.split(tensor.reshape(-1, self.size), ROWS)
        return torch.cat([self._columns(some).float() for some in rows]).view(tensor.shape)

    def _columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return tensor Q [rows, size] in double precision."""
        factors = self.factors
        turned = (tensor.double() * self.signs).view(-1, factors.base, 2**factors.doublings)
        # 1. The doublings: pairs become sum and difference.
        width = 1
        while width < turned.shape[2]:
            pairs = turned.view(len(turned), factors.base, -1, 2, width)
            first, second = pairs[..., 0, :], pairs[..., 1, :]
            turned = pairs.new_empty(pairs.shape)
            turned[..., 0, :], turned[..., 1, :] = first + second, first - second
            turned = turned.view(len(turned), factors.base, -1)
            width *= 2
        # 2. The base.
        if factors.base > 1:
            turned = paley_matrix(factors).T @ turned
        rotated: torch.Tensor = turned.reshape(-1, self.size) / self.size**0.5
        return rotated

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return Q' tensor [size, ...]: what a matrix that writes the rotated state has in its place."""
        return self.columns(tensor.T).T.contiguous()


@cache
def paley_matrix(factors: HadamardFactors) -> torch.Tensor:
    """Return the Hadamard matrix of order `factors.base` [base, base] in double precision."""
    import torch

    # 1. The quadratic character of all differences [prime, prime]: 1 for squares, -1 for others, 0 for none.
    prime = factors.prime
    squares = {number * number % prime for number in range(1, prime)}
    character = torch.tensor([0.0, *(1.0 if number in squares else -1.0 for number in range(1, prime))]).double()
    places = torch.arange(prime)
    differences = character[(places[:, None] - places[None, :]) % prime]
    # 2. Bordered by ones: skew for construction I, symmetric for II.
    bordered = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    bordered[0, 1:], bordered[1:, 1:] = 1.0, differences
    bordered[1:, 0] = -1.0 if factors.construction == "I" else 1.0
    identity = torch.eye(prime + 1, dtype=torch.float64)
    if factors.construction == "I":
        return identity + bordered
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()
    return torch.kron(bordered, signs) + torch.kron(identity, torch.tensor([[1.0, -1.0], [-1.0, -1.0]]).double())
