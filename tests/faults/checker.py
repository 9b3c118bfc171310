"""Reads the history of a site in which all has ended, and says what is wrong with it. Knows nothing of what was
injected."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta

import boto3
from sqlmodel import select

from backend.artifacts import locations
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import TERMINAL, Event, JobState
from backend.service import Workspace
from backend.service.jobs import artifact_storage
from backend.store import history
from backend.store.tables import ArtifactContentRow, ArtifactRow, ClaimRow, JobRow
from tests import live_processes
from tests.faults.site import BUCKET, Site
from tests.faults.worker import chain, read_steps

STEP = re.compile(r"step (\d+) of attempt (\d+)")
STARTED = re.compile(r"Started as .*, attempt (\d+)\.")


def wrong(site: Site) -> list[str]:
    """A sentence for each thing; to be asked once every supervisor has stopped."""
    with site.store.read() as session:
        rows = list(session.exec(select(JobRow)))
        claims = list(session.exec(select(ClaimRow)))
        values = list(session.exec(select(ArtifactRow)))
        events = {row.id: history.list_events(session, row.id) for row in rows}
    results = [f"claim of {claim.host}/{claim.device} leaked to {claim.job_id}" for claim in claims]
    results += [f"orphan: process {process.pid} {live_processes.command(process)}" for process in site.left_over()]
    results += [f"orphan: {each}" for each in site.left_on_nodes()]
    if sorted(row.id for row in rows) != sorted(site.submitted):
        results.append(f"jobs {sorted(row.id for row in rows)} where {sorted(site.submitted)} were submitted")
    for row in rows:
        results += [f"{row.id}: {each}" for each in (*_outcome(site, row), *_events(row, events[row.id]))]
    return results + _artifacts(site, rows, values)


def _outcome(site: Site, row: JobRow) -> list[str]:
    results = []
    if row.state not in TERMINAL:
        results.append(f"it is {row.state}")
    if row.state == JobState.CANCELLED and row.id not in site.cancelled:
        results.append(f"it is cancelled, which nobody asked for: {row.error}")
    if row.state != JobState.SUCCEEDED and row.id not in site.cancelled:
        results.append(f"it ended {row.state}: {row.error}")
    if (row.result is not None) != (row.state == JobState.SUCCEEDED):
        results.append(f"it is {row.state} and its result is {row.result}")
    if row.lease_until is not None:
        results.append("its lease was not given back")
    return results


def _events(row: JobRow, events: list[tuple[int, Event]]) -> list[str]:
    """No gap, no double, nothing of an attempt that is over, one success at most and at the end."""
    result, attempt, last = [], 0, dict[int, int]()
    if [seq for seq, _ in events] != list(range(1, len(events) + 1)):
        result.append("its events have a gap or a double")
    for _, event in events:
        message = event.message or ""
        if started := STARTED.fullmatch(message):
            if int(started[1]) <= attempt:
                result.append(f"attempt {started[1]} was started after attempt {attempt}")
            attempt = int(started[1])
        if step := STEP.fullmatch(message):
            number, subject = int(step[1]), int(step[2])
            if subject != attempt:
                result.append(f"{message} was carried while attempt {attempt} had the job")
            if subject in last and number != last[subject] + 1:
                result.append(f"{message} came after step {last[subject]}")
            last[subject] = number
    ends = [number for number, (_, event) in enumerate(events) if event.message == "Succeeded."]
    if len(ends) != (row.state == JobState.SUCCEEDED) or (ends and ends[-1] != len(events) - 1):
        result.append(f"it succeeded {len(ends)} times and is {row.state}")
    return result


def _artifacts(site: Site, rows: list[JobRow], artifact_rows: list[ArtifactRow]) -> list[str]:
    """Each job that succeeded has one, which verifies and holds what the job's steps come to; nothing else lies
    there."""
    result, by_job = [], Counter(each.job_id for each in artifact_rows)
    succeeded = {row.id: row for row in rows if row.state == JobState.SUCCEEDED}
    if by_job != Counter(list(succeeded)):
        result.append(f"artifacts of {dict(by_job)} where {sorted(succeeded)} succeeded")
    for each in artifact_rows:
        place = locations.location_of(site.driver, each.path)
        try:
            place.verify(each.path, Manifest.model_validate_json(each.manifest))
            steps = read_steps(succeeded[each.job_id].spec)[0] if each.job_id in succeeded else 0
            with place.use(each.path, each.id) as folder:
                if (folder / "model" / "weights").read_text() != chain(each.job_id, steps):
                    result.append(f"{each.id} is not what {each.job_id} had to make")
        except (WhetstoneError, OSError) as error:
            result.append(f"{each.id} of {each.job_id} does not verify: {error}")
    return result + (_folders(site, {each.path for each in artifact_rows}) if site.artifacts is None else _bucket(site))


def _folders(site: Site, named: set[str]) -> list[str]:
    """After a collection in each home, what lies there is what artifacts name: of a supervisor that was killed between
    the two, an attempt that others repeated may have been put in its place."""
    for name in site.homes:
        artifact_storage.collect_garbage(
            Workspace(site.driver.model_copy(update={"home": site.home(name)}), site.store), grace=timedelta(0)
        )
    lying = {str(path) for name in site.homes for path in (site.home(name) / "artifacts").glob("*")}
    return [f"{path} lies there, and no row names it" for path in sorted(lying - named)]


def _bucket(site: Site) -> list[str]:
    """After a collection, what lies in the bucket is what artifacts name."""
    artifact_storage.collect_garbage(Workspace(site.driver, site.store), grace=timedelta(0))
    with site.store.read() as session:
        named = set(session.exec(select(ArtifactContentRow.address)))
    prefix = str(site.artifacts).removeprefix(f"s3://{BUCKET}/")
    listed = boto3.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
    lying = {f"s3://{BUCKET}/{each['Key']}" for each in listed}
    return [f"{address} lies in the bucket, and no artifact names it" for address in sorted(lying - named)] + [
        f"{address} is named, and is not in the bucket" for address in sorted(named - lying)
    ]
