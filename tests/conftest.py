"""What tests share: a home of their own, the starter models, one warm vLLM server and one Chromium a session."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from xdist.remote import Producer

from backend import settings
from backend.domain.evaluation.document import Variant
from backend.domain.recipe.recipe import Serving
from backend.hardware.engine_status import engine_python
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.serving.vllm import VllmServer
from backend.settings import ASSETS
from tests.homes import KERNELS, open_home, processes_of, supervisors_of
from tests.postgres import Postgres
from tests.properties import register_profiles
from tests.sharing import Sharing, begin_elsewhere, rank

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000
OFFLINE = {"HF_ENDPOINT": "http://127.0.0.1:1", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}

register_profiles()
ALONE = ("tests/integration/load/", "tests/campaign/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--photograph", action="store_true", help="keep pictures of the pages, under build/screenshots")
    parser.addoption(
        "--until",
        type=int,
        metavar="SECONDS",
        help="begin no test after this time (seconds since 1970), and begin with another file in each run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """One folder of compiled kernels for all processes of this run, and one recorded demonstration whatever the
    processor: those that pytest starts inherit both names."""
    os.environ["WHETSTONE_RECORDED"] = "amd-epyc"
    if KERNELS not in os.environ:
        os.environ[KERNELS] = tempfile.mkdtemp(prefix="whetstone-kernels-")
        config.add_cleanup(partial(shutil.rmtree, os.environ[KERNELS], ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> object:
    """`--dist loadgroup` is ours: see tests/sharing.py."""
    return Sharing(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by `sharing.rank`: long files and those that wait for a vLLM come first. With --until, by
    `sharing.begin_elsewhere` too."""
    items.sort(key=lambda item: rank(item.nodeid, waits=item.get_closest_marker("vllm") is not None))
    if until := config.getoption("until"):
        places = {nodeid: place for place, nodeid in enumerate(begin_elsewhere([item.nodeid for item in items], until))}
        items.sort(key=lambda item: places[item.nodeid])
    for item in items:
        if item.get_closest_marker("alone") and not item.nodeid.startswith(ALONE):
            raise pytest.UsageError(
                f"{item.nodeid} is marked `alone`, which the Makefile looks for below {' and '.join(ALONE)}."
            )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what would begin after --until, before its fixtures start anything."""
    until = item.config.getoption("until")
    if until and time.time() > until:
        pytest.skip("the time of this run was over; without --until it runs")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workspace]:
    """Empty, for real supervisors and workers, of which nothing may be left."""
    workspace = open_home(tmp_path / "home")
    yield workspace
    # A supervisor may be starting a job at this very moment, whose process does not run yet.
    if processes_of(workspace) or supervisors_of(workspace):
        jobs.cancel_all_and_stop(workspace)
    assert processes_of(workspace) == []


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model hub and no package index answers, in this process and in those that it starts."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of this session's own."""
    server = Postgres()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Shared, since Playwright allows one of its loops a process."""
    assert CHROMIUM, "These tests need Chromium: apt-get install chromium"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def starter_target() -> Path:
    """The trained starter model, or the folder that WHETSTONE_TEST_TARGET names."""
    return Path(os.environ.get("WHETSTONE_TEST_TARGET") or ASSETS / "starter" / "target")


@pytest.fixture(scope="session")
def starter_draft() -> Path:
    """The draft distilled from it, or the folder that WHETSTONE_TEST_DRAFT names."""
    return Path(os.environ.get("WHETSTONE_TEST_DRAFT") or ASSETS / "starter" / "draft")


@pytest.fixture(scope="session")
def serve_python() -> Path:
    """The serve environment's interpreter. Where it is missing the test fails with the sentence that says how to
    install it."""
    return engine_python(settings.load(), "serve")


@pytest.fixture(scope="session")
def vllm_cache() -> Path:
    """vLLM's cache of this run."""
    return Path(os.environ[KERNELS])


@pytest.fixture(scope="session")
def vllm_server(
    tmp_path_factory: pytest.TempPathFactory, starter_target: Path, serve_python: Path, vllm_cache: Path
) -> Iterator[VllmServer]:
    """One warm server of the starter target, eager, with a small key-value cache."""
    variant = Variant(
        name="starter",
        source="starter",
        kind="model",
        model_path=str(starter_target),
        serving=Serving(enforce_eager=True),
    )
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with VllmServer(variant, python=serve_python, log=log, cache_root=vllm_cache, kv_cache_gib=0.0625) as server:
        yield server
