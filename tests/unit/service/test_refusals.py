"""The difference is named where only an option differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.service import Workspace
from backend.service.models import models, technique_checks
from tests.homes import open_home


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path)


def test_the_nearest_names_the_option_that_differs(workspace: Workspace) -> None:
    """ "AWQ no, nearest AWQ": only the group size differs."""
    card = models.resolve_facts(workspace, "starter")
    odd = card.model_copy(
        update={"hidden_size": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate_size": 1536}
    )
    awq = next(check for check in technique_checks.check_all(workspace, odd) if check.kind == "awq")
    assert not awq.works and awq.nearest == "quantize awq (group_size 64)"
