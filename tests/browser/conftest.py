"""One real studio and one Chromium for all browser tests, and the data of a measured model."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs import jobs
from backend.service.plans import optimize
from backend.service.studio import demo, demo_model
from tests.browser.places import SCREENSHOTS
from tests.browser.running import Studio, running_studio
from tests.homes import until_ended

LOG_CHARACTERS = 8_000
"""Of a studio's log in the report of a failed test."""


@pytest.fixture(scope="session")
def screenshots(request: pytest.FixtureRequest) -> Path | None:
    """Where pictures go, which are taken with `--photograph` only: no test looks at them, and taking them takes
    longest."""
    return SCREENSHOTS if request.config.getoption("photograph") else None


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """The studio that the browser tests share."""
    with running_studio(tmp_path_factory.mktemp("studio")) as running:
        yield running


@pytest.fixture(scope="session")
def empty_studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A studio in which nothing was ever done, and nothing may be."""
    with running_studio(tmp_path_factory.mktemp("empty")) as running:
        yield running
        assert jobs.count(running.workspace) == 0


@pytest.fixture(scope="session")
def measured(studio: Studio) -> EvaluationView:
    """An evaluation in the shared studio: the one that the loop left behind, else one made now."""
    workspace = studio.workspace
    results = [
        view
        for view in evaluations.listing(workspace)
        if [v.variant.kind for v in view.document.variants] == ["model", "artifact"]
    ]
    if results:
        return results[0]
    prepared = demo.prepare(workspace, demo_model.starter_card(workspace), demo.RECIPES["w8a8"])
    artifact = until_ended(workspace, optimize.submit(workspace, prepared).id).result["artifact"]
    options = evaluations.read_options(concurrency=(1, 2), repeats=1, requests=8, max_tokens=16)
    spec = evaluations.prepare(workspace, ["starter", str(artifact)], options)
    ended = until_ended(workspace, evaluations.submit(workspace, spec).id)
    return evaluations.show(workspace, str(ended.result["evaluation"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the studio's log to the report of a test that failed: a page names the id of its error only."""
    report = yield
    if report.failed:
        for name, studio in getattr(item, "funcargs", {}).items():
            if isinstance(studio, Studio):
                log = (studio.workspace.settings.home / "studio.log").read_text(errors="replace")
                report.sections.append((f"studio.log of {name}", log[-LOG_CHARACTERS:]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the screenshots are, for whoever keeps them."""
    if terminalreporter.config.getoption("photograph"):
        count = sum(1 for _ in SCREENSHOTS.rglob("*.png"))
        terminalreporter.write_line(f"Screenshots of every page: {count} files in {SCREENSHOTS}")
