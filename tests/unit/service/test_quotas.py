"""How much people bring: refused before a download or before a file is kept, counted by what lies on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.catalog.remote import sources
from backend.domain.errors import TooMuch
from backend.domain.jobs.jobs import ImportSpec, JobState
from backend.domain.roles import Actor, Role
from backend.service import Workspace
from backend.service.evaluations import workloads
from backend.service.jobs import jobs, quotas
from backend.service.machines import doctor
from backend.service.plans import calibration
from backend.settings import Settings
from tests.homes import open_home

ROWS = b"".join(b'{"prompt": "Prompt number %d of an upload"}\n' % number for number in range(40))


def spec(name: str, size: int) -> ImportSpec:
    return ImportSpec(source=f"org/{name}", revision="1" * 40, endpoint="https://hub.example.org", bytes=size)


def imported_bytes(workspace: Workspace) -> int:
    with workspace.store.read() as session:
        return quotas.imported_bytes(workspace, session, workspace.actor.name)


def test_one_persons_imports_are_counted_by_jobs_under_way_and_by_disk(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", max_imports_gb=1e-3)
    ann = home.acting_as(Actor(name="ann", role=Role.OPERATOR))
    first = jobs.submit(ann, spec("a", 700_000), "Import a")
    with pytest.raises(
        TooMuch, match=r"ann would have 0\.00 GB of imported models, and one person may have 0\.001 GB here"
    ):
        jobs.submit(ann, spec("b", 700_000), "Import b")
    jobs.submit(home.acting_as(Actor(name="bob", role=Role.OPERATOR)), spec("b", 700_000), "Import b")
    assert imported_bytes(ann) == 700_000
    jobs.cancel(ann, first.id)
    assert imported_bytes(ann) == 0, "nothing was fetched"
    folder = sources.folder(home.settings.models, "org/a", "1" * 40)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(900_000))
    assert imported_bytes(ann) == 900_000 and jobs.show(ann, first.id).state is JobState.CANCELLED
    again = jobs.submit(ann, spec("a", 700_000), "Import a again")
    assert imported_bytes(ann) == 900_000, "the same model once"
    jobs.cancel(ann, again.id)
    with pytest.raises(TooMuch, match="WHETSTONE_MAX_IMPORTS_GB"):
        jobs.submit(ann, spec("c", 200_000), "Import c")


@pytest.mark.process
def test_a_home_holds_so_many_bytes_of_uploads(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", max_uploads_gb=3e-6)
    workloads.save(home, "mine.jsonl", ROWS)
    assert 1500 < quotas.uploaded_bytes(home) < 3000
    for act in (
        lambda: workloads.save(home, "more.jsonl", ROWS + ROWS),
        lambda: calibration.save(home, "words.txt", b"Words of a text that calibrates. " * 60),
    ):
        with pytest.raises(TooMuch, match="WHETSTONE_MAX_UPLOADS_GB"):
            act()
    assert len(workloads.list_saved(home)) == 1 and not list((home.settings.home / "calibration").glob("*"))
    assert any("uploads take 0.00 of 3e-06 GB" in each.finding for each in doctor._quotas(home))


def test_only_where_others_reach_it_is_there_a_limit_without_a_setting(tmp_path: Path) -> None:
    alone, shared = Settings(home=tmp_path), Settings(home=tmp_path, shared=True)
    assert (alone.imports_gb, alone.uploads_gb) == (None, None)
    assert (shared.imports_gb, shared.uploads_gb) == (500.0, 10.0)
    assert shared.model_copy(update={"max_imports_gb": 0.0}).imports_gb == 0.0
