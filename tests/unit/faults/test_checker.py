"""The history checker of the fault campaign says what is wrong: each thing that it must notice, made by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, update
from sqlmodel import Session, col

from backend.channel import JobChannel
from backend.domain.jobs.jobs import Event, JobState
from backend.store import history
from backend.store.tables import ArtifactRow, ClaimRow, EventRow, JobRow
from tests import small_artifacts
from tests.faults.checker import wrong
from tests.faults.site import Lane, Site
from tests.faults.worker import chain
from tests.homes import DATABASE, open_home

STEPS = 3


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """One job that succeeded as it should."""

    def make_database(folder: Path) -> str:
        open_home(folder / "store").store.engine.dispose()
        return f"sqlite:///{folder}/store/{DATABASE}"

    place = Site(tmp_path / "site", Lane("SQLite", make_database), 0)
    place.submit(1, steps=STEPS)
    channel = JobChannel(place.channel("j-0"))
    manifest = small_artifacts.publish(channel, chain("j-0", STEPS))
    final = place.home() / "artifacts" / manifest.id
    final.parent.mkdir(parents=True)
    shutil.move(channel.output, final)
    messages = ["Started as process 7, attempt 1.", *(f"step {n} of attempt 1" for n in range(STEPS)), "Succeeded."]
    with place.store.session() as session:
        history.append(session, "j-0", [Event(kind="state", message=message) for message in messages])
        session.execute(update(JobRow).values(state=JobState.SUCCEEDED, result="{}"))
        session.add(
            ArtifactRow(
                id=manifest.id,
                job_id="j-0",
                model="m",
                recipe="r",
                recipe_hash="h",
                path=str(final),
                bytes=1,
                manifest=manifest.model_dump_json(),
            )
        )
    yield place
    place.close()


def append_notes(*messages: str) -> Callable[[Session], object]:
    return lambda session: history.append(session, "j-0", [Event(kind="note", message=message) for message in messages])


SPOILS: dict[str, tuple[Callable[[Session], object], str]] = {
    "claim": (lambda session: session.add(ClaimRow(host="h", device="d", job_id="j-0")), "leaked"),
    "lost": (lambda session: session.execute(update(JobRow).values(state=JobState.LOST, result=None)), "ended lost"),
    "cancelled": (lambda session: session.execute(update(JobRow).values(state=JobState.CANCELLED)), "nobody asked"),
    "live": (lambda session: session.execute(update(JobRow).values(state=JobState.RUNNING)), "it is running"),
    "no result": (lambda session: session.execute(update(JobRow).values(result=None)), "its result is None"),
    "no artifact": (lambda session: session.execute(delete(ArtifactRow)), "where ['j-0'] succeeded"),
    "gap": (lambda session: session.execute(delete(EventRow).where(col(EventRow.seq) == 2)), "a gap"),
    "step of another attempt": (append_notes("step 0 of attempt 2"), "while attempt 1 had the job"),
    "step twice": (append_notes("step 2 of attempt 1"), "after step 2"),
    "success twice": (append_notes("Succeeded."), "succeeded 2 times"),
    "started twice": (append_notes("Started as process 8, attempt 1."), "started after attempt 1"),
    "other work": (
        lambda session: session.execute(update(JobRow).values(spec='{"seed": 4000}')),
        "is not what j-0 had to make",
    ),
}


def test_what_is_as_it_should_be_is_not_wrong(site: Site) -> None:
    assert wrong(site) == []


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_is_wrong_is_noticed(site: Site, spoil: str) -> None:
    act, words = SPOILS[spoil]
    with site.store.session() as session:
        act(session)
    assert any(words in each for each in wrong(site)), wrong(site)


def test_files_that_are_not_what_was_registered_are_noticed(site: Site) -> None:
    weights = next((site.home() / "artifacts").glob("*/model/weights"))
    weights.write_text("something else")
    assert "does not verify" in wrong(site)[0]


def test_an_artifact_that_no_row_names_is_noticed(site: Site) -> None:
    (site.home() / "artifacts" / "a-1").mkdir()
    assert "no row names it" in wrong(site)[0]
