"""docs/python.md and its notebook are run up to the measurement, in one home; and a measurement from Python without
vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whetstone as ws
from backend.service import Workspace
from backend.service.jobs import jobs
from tests.fakes.running import running, write_prompts
from tests.homes import open_home

pytestmark = pytest.mark.process
DOCS = Path(__file__).resolve().parents[2] / "docs"
MEASURES = ".evaluate("


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    workspace = open_home(tmp_path / "home")
    monkeypatch.setenv("WHETSTONE_HOME", str(workspace.settings.home))
    yield workspace
    jobs.cancel_all_and_stop(workspace)


def page() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)


def notebook() -> list[str]:
    """Its cells of code. What nbformat 4.5 requires of it is looked at here, and that no output is kept."""
    parsed = json.loads((DOCS / "notebooks" / "optimize.ipynb").read_text())
    assert (parsed["nbformat"], parsed["nbformat_minor"]) == (4, 5) and set(parsed) == {
        "cells",
        "metadata",
        "nbformat",
        "nbformat_minor",
    }
    assert len({cell["id"] for cell in parsed["cells"]}) == len(parsed["cells"])
    code = [cell for cell in parsed["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    return ["".join(cell["source"]) for cell in code]


def run(blocks: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs", "exec"), names)
    return names


def before_measuring(blocks: list[str]) -> list[str]:
    first = next(number for number, block in enumerate(blocks) if MEASURES in block)
    assert first > 0
    return blocks[:first]


@pytest.mark.campaign
def test_the_examples_optimize_and_preview_a_deployment(opened: Workspace) -> None:
    first, second = run(before_measuring(page())), run(before_measuring(notebook()))
    created = first["artifact"]
    assert created.id == second["artifact"].id and len(jobs.listing(opened)) == 1, "the same key is the same job"
    assert first["job"].result.id == created.id and created.quality["kl_mean"] < 0.1 and created.id in repr(created)
    assert [event.kind for event in first["job"].events()] and "succeeded" in repr(first["job"])
    assert "w8a8" in created._repr_html_() and first["job"].id in first["job"]._repr_html_()
    assert first["requests"]["requests"] and first["requests"]["usd_per_hour"] == second["requests"]["usd_per_hour"]


def test_a_measurement_from_python_to_its_end_and_one_that_is_cancelled(opened: Workspace, tmp_path: Path) -> None:
    studio, load = ws.open(), {"requests": 2, "repeats": 1, "max_tokens": 3, "quality": False}
    with running("plain_server.py") as url:
        prompts = write_prompts(tmp_path, *({"prompt": f"line {number}"} for number in range(9)))
        job = studio.evaluate([url], concurrency=[1], workload=prompts, **load)
        result = job.wait()
        assert studio.job(job.id).result is not job and studio.evaluation(result.id).document == result.document
        assert result.report(tmp_path / "report.html").stat().st_size > 1000
    with running("plain_server.py", "--ttft-ms", 60_000) as url:
        slow = studio.evaluate([url], concurrency=[1], workload=prompts, **load)
        with pytest.raises(ws.WhetstoneError, match="wait again, or cancel it"):
            slow.wait(timeout_s=0)
        with pytest.raises(ws.WhetstoneError, match="wait for its end first"):
            _ = slow.result
        with pytest.raises(ws.WhetstoneError, match="ancel"):
            slow.cancel().wait()
