"""What a page reads again at every look at it: no statement a row, and nothing twice that never changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event

from backend.domain.jobs.jobs import InstallSpec, JobState
from backend.domain.planner.roofline import ExpectedLoad
from backend.service import Workspace
from backend.service.jobs import artifacts
from backend.service.machines import engines, targets
from backend.service.models import models, technique_checks
from backend.service.plans import cases, estimates, recipe_files
from tests import measured, studio


def selects(home: Workspace, ask: Callable[[], Any]) -> tuple[int, Any]:
    """How often that reads the store, and what it answers."""
    statements = list[str]()

    def count(*items: Any) -> None:
        statements.append(items[2])

    event.listen(home.store.engine, "before_cursor_execute", count)
    answer = ask()
    event.remove(home.store.engine, "before_cursor_execute", count)
    return sum(each.startswith("SELECT") for each in statements), answer


def test_the_newest_installations_are_read_together(home: Workspace) -> None:
    for name in ("serve", "compress", "serve"):
        studio.put(home, InstallSpec(engine=name), f"Install the engine {name}", JobState.FAILED)
    times, newest = selects(home, lambda: engines.latest_jobs(home))
    assert set(newest) == {"serve", "compress"} and times == 2


def test_several_loads_ask_for_what_was_measured_as_often_as_one(home: Workspace) -> None:
    measured.store(home)
    case = cases.resolve(home, models.resolve_facts(home, "starter"), recipe_files.read_file(Path("w8a8")))
    loads = [ExpectedLoad(concurrency=number) for number in (1, 4, 16)]
    estimates.estimate_loads(home, case, loads)  # documents are read once a process
    once, (first,) = selects(home, lambda: estimates.estimate_loads(home, case, loads[:1]))
    often, result = selects(home, lambda: estimates.estimate_loads(home, case, loads))
    assert result == [estimates.estimate_one(home, case, load) for load in loads] and result[0] == first
    assert once == often > 0


def test_what_never_changes_is_worked_out_once(home: Workspace) -> None:
    studio.artifact(home, studio.optimize_job(home), models.resolve(home, "starter"))
    (first,), (again,) = artifacts.listing(home), artifacts.listing(home)
    assert first.manifest is again.manifest
    model, here = models.resolve(home, "starter"), targets.find(home, "local")
    assert technique_checks.check_quickly(home, model, here) is technique_checks.check_quickly(home, model, here)
    other = model.model_copy(update={"layers": model.layers * 1000, "parameters": 10**13})
    assert technique_checks.check_quickly(home, other, here) != technique_checks.check_quickly(home, model, here), (
        "of one path and revision, but not alike"
    )
