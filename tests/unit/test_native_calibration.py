"""The two forms of the calibration loss: Gram matrix and sampled rows."""

from __future__ import annotations

import torch

from backend.engines.native.calibration import Gram


def test_the_token_form_is_the_same_loss_as_the_gram_form() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, error = torch.randn(64, 24, generator=generator), torch.randn(8, 24, generator=generator)
    gram = Gram(rows.T @ rows, rows.abs().sum(0))
    tokens = Gram(rows, rows.abs().sum(0), wide=True)
    assert abs(gram.squared(error) / tokens.squared(error) - 1) < 1e-4
