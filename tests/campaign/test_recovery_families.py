"""Recovery for every family and layout of the native engine, of pruned and of quantized weights: what is trained is
found by name, zeros and integers stay, and the loss falls."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.recipe.recovery import RecoverQuantized
from tests import families
from tests.helpers.recovery_cases import FAST, Case, changed, quantized, same_but_for_the_kept_weights, trained

DENSE = [kind for kind, (_, own) in families.KINDS.items() if "num_experts_per_tok" not in own]


@pytest.mark.campaign
@pytest.mark.parametrize("kind", DENSE)
def test_every_dense_family_recovers(tmp_path: Path, kind: str) -> None:
    case = Case.prune(families.tiny(tmp_path / kind, kind))
    result = case.recover(tmp_path / "out", FAST.model_copy(update={"steps": 4, "learning_rate": 0.002}))
    assert result.loss_after < result.loss_before
    same_but_for_the_kept_weights(case, tmp_path / "out")


@pytest.mark.campaign
@pytest.mark.parametrize("kind", DENSE)
def test_every_dense_family_recovers_its_scales(tmp_path: Path, kind: str) -> None:
    model = families.tiny(tmp_path / kind, kind)
    before = quantized(model)
    result = trained(model, before, tmp_path / "out", RecoverQuantized(steps=4, learning_rate=0.005))
    assert result.loss_after < result.loss_before
    assert changed(before, tmp_path / "out") == {"weight_scale"}
