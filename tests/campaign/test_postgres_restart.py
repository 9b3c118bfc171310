"""dbos#716: PostgreSQL is restarted in the middle of a job, and nothing is stranded: neither that job nor the one after
it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlmodel import select

from backend.domain.jobs.jobs import JobState
from backend.domain.recipe import recipe
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.plans import optimize
from backend.store.tables import ClaimRow
from tests import homes
from tests.held_workers import hold, release
from tests.homes import until_ended
from tests.postgres import Postgres

pytestmark = [pytest.mark.campaign, pytest.mark.process]
LONGER = recipe.read({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})
AWAY_S = 3.0
"""Longer than a heartbeat and than a few rounds."""


def test_dbos_716_a_restart_of_postgresql_in_mid_job_strands_nothing(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.new()
    home = homes.open_home(tmp_path, database_url=url)
    first = optimize.submit(home, homes.prepare(home, "starter", LONGER))
    second = jobs.submit(home, homes.prepare(home, "starter", LONGER).spec, "after it", after=first.id)
    supervisors.start(home)
    try:
        worker = hold(home, first.id, "optimize")
        postgres.stop()
        time.sleep(AWAY_S)
        postgres.start()
        release(worker)
        ended = until_ended(home, first.id)
        assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 1), ended.error
        assert f"process {worker}" in " ".join(event.message or "" for event in jobs.timeline(home, first.id))
        assert until_ended(home, second.id).state is JobState.SUCCEEDED
        for created in artifacts.listing(home):
            artifacts.verify(home, created.id)
        with home.store.read() as session:
            assert session.exec(select(ClaimRow)).all() == []
    finally:
        jobs.cancel_all_and_stop(home)
        home.store.engine.dispose()
        postgres.drop(url)
