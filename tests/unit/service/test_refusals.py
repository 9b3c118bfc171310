"""Refusals in one line a reason, and the difference named where only an option differs (found.md U20)."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.rules.refusals import Refused, grouped
from backend.service import Workspace
from backend.service.models import models, techniques
from tests.homes import open_home


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_home(tmp_path)


def test_one_reason_is_one_line() -> None:
    too_large = [Refused(title, "too large for this machine (25 GB)", "ml.g6e.xlarge") for title in ("AWQ", "GPTQ", "FP8")]
    first, second = grouped([Refused("n-gram", "generates no tokens"), *too_large])
    assert first.words == "3 techniques: too large for this machine (25 GB); fits ml.g6e.xlarge"
    assert first.titles == ("AWQ", "GPTQ", "FP8") and second.words == "n-gram: generates no tokens"
    differ = [too_large[0]._replace(price=2.0), too_large[1]._replace(fits="ml.p5.48xlarge", price=40.0)]
    assert grouped(differ)[0].fits == "ml.g6e.xlarge with AWQ" and grouped([]) == []


def test_what_is_too_large_here_is_one_line_with_where_it_fits(workspace: Workspace) -> None:
    model = models.facts(workspace, "meta-textgeneration-llama-3-70b")
    lines = techniques.refusals(workspace, model)
    assert len(lines) < 5 and lines[0].why.startswith("too large for this machine") and len(lines[0].titles) > 8
    assert lines[0].words.split()[0] == str(len(lines[0].titles)) and "; fits ml." in lines[0].words


def test_the_nearest_names_the_option_that_differs(workspace: Workspace) -> None:
    """ "AWQ no, nearest AWQ": only the group size differs."""
    card = models.facts(workspace, "starter")
    odd = card.model_copy(update={"hidden_size": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate_size": 1536})
    awq = next(check for check in techniques.checks(workspace, odd) if check.kind == "awq")
    assert not awq.works and awq.nearest == "quantize awq (group_size 64)"
