"""What an optimize job copies instead of making: never a folder without weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.errors import ModelDamaged
from backend.worker.kinds.optimize import copy_model
from tests.tiny import tiny_llama


def test_a_model_that_is_gone_is_no_artifact_without_weights(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    copy_model(model, tmp_path / "copied")
    assert (tmp_path / "copied" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").unlink()
    for folder in (model, tmp_path / "never"):
        with pytest.raises(
            ModelDamaged, match=r"There are no weights in .* any more: put them back, then resume the job"
        ):
            copy_model(folder, tmp_path / "empty")
        assert not (tmp_path / "empty").exists()
