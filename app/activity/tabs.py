"""Draw the three tabs of the audit log: changes, running, failed or lost. A row or a button leads to its job."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import streamlit as st

from app import navigation
from app.formatting import cell, local_time, plain, seconds, shorten
from app.jobs.job_text import ICONS, state_words
from backend.domain.roles import Origin
from backend.service import Workspace
from backend.service.jobs import jobs, running_jobs
from backend.service.jobs.jobs import JobView
from backend.service.jobs.running_jobs import RunningJob
from backend.service.studio import audit
from backend.service.studio.audit import AuditRecord

PER_PAGE = 25
LONGEST = 240
"""Characters of a reason or a detail in a table."""
TABS = (":material/history: Changes", ":material/dns: Running", ":material/error: Failed or lost")


class ActivityFilter(NamedTuple):
    """The person and the search words by which the lists are narrowed."""

    person: str | None
    words: str

    @property
    def any(self) -> bool:
        return bool(self.person or self.words)


def running(opened: Workspace, chosen: ActivityFilter) -> tuple[tuple[str, str], ...]:
    """Draw a card for each live job. Return the ids and states, so that the page follows a change."""
    live_jobs = running_jobs.list_running(opened, owner=chosen.person, words=chosen.words)
    # Say that nothing runs, or that nothing matches.
    if not live_jobs:
        show_empty(chosen.any, "Nothing is running. Running jobs appear here with their host and device.")
    # A card for each: title, place, times, and a warning if its supervisor is silent.
    for job in live_jobs:
        with st.container(border=True):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(f"**{plain(job.title)}** · {ICONS[job.state]} {job.state}", width="stretch")
                navigation.link("job", "Open", ":material/open_in_new:", id=job.id)
            st.markdown(f":material/dns: {place_text(job)}")
            st.caption(times_text(job))
            if job.silent:
                notice = "No supervisor reports on it: another one gives it up when its lease has run out."
                st.markdown(f":material/warning: {notice}")
    return tuple((job.id, str(job.state)) for job in live_jobs)


def failed(opened: Workspace, chosen: ActivityFilter) -> None:
    # Read one page of the jobs that the filter leaves.
    filters: dict[str, Any] = {
        "states": [str(state) for state in running_jobs.UNSUCCESSFUL],
        "owner": chosen.person,
        "words": chosen.words,
    }
    page, first = navigation.paginate(jobs.count(opened, **filters), PER_PAGE, "bad_page")
    failed_jobs = jobs.listing(opened, **filters, limit=PER_PAGE, offset=first)
    if not failed_jobs:
        show_empty(chosen.any, "No job has failed, been lost or been cancelled.")
        return
    # List them; a click opens the job.
    picked = _table(
        [ended_row(job) for job in failed_jobs],
        f"bad_{page}_{failed_jobs[0].id}",
        "Jobs that failed, were lost or cancelled, latest first",
    )
    if picked is not None:
        navigation.go("job", id=failed_jobs[picked].id)


def changes(opened: Workspace, chosen: ActivityFilter) -> None:
    """List who changed what; only an admin sees changes by others."""
    # Filter by origin, besides person and words.
    origins = st.pills(
        "From", get_args(Origin), selection_mode="multi", key=navigation.page_key("from"), bind="query-params"
    )
    who = (chosen.person,) if chosen.person else ()
    filters: dict[str, Any] = {
        "who": audit.readable_owner(opened) or who,
        "words": chosen.words,
        "origins": origins or (),
    }
    # Read one page; only an admin gets the changes of others.
    page, first = navigation.paginate(audit.count(opened, **filters), PER_PAGE, "changes_page")
    records = audit.listing(opened, **filters, limit=PER_PAGE, offset=first)
    if not records:
        show_empty(chosen.any or bool(origins), "Nobody has changed anything yet.")
        return
    # List them; a click on a change of a job opens the job.
    picked = _table(
        [change_row(record) for record in records], f"changes_{page}_{records[0].id}", "Who changed what, latest first"
    )
    if picked is not None and records[picked].kind == "job":
        navigation.go("job", id=records[picked].target)


def show_empty(narrowed: bool, sentence: str) -> None:
    if narrowed:
        st.info("No match. Remove a filter.", icon=":material/filter_alt_off:")
    else:
        st.info(sentence, icon=":material/info:")


def _table(shown: list[dict[str, Any]], key: str, alt: str) -> int | None:
    """Draw a table. Return the selected row, if there is one."""
    picked = st.dataframe(
        shown,
        hide_index=True,
        key=navigation.page_key(key),
        on_select="rerun",
        selection_mode="single-cell",
        alt=alt,
    )
    st.caption("Choose a row to open its job.")
    return int(picked.selection.cells[0][0]) if picked.selection.cells else None


def place_text(job: RunningJob) -> str:
    """Return `host, accelerator, process 71` and the home of a running job."""
    parts = [
        f"**{plain(job.host or 'no host yet')}**",
        *map(plain, job.devices),
        *([plain(job.place)] if job.place else []),
    ]
    return " · ".join([*parts, plain(job.home)])


def times_text(job: RunningJob) -> str:
    """Return the owner, start and attempt of a job, and how fresh its lease is."""
    lease = "no lease" if job.lease_s is None else f"lease {seconds(job.lease_s)}"
    late = "lease run out" if job.lease_s is not None and job.lease_s < 0 else lease
    heard = "supervisor not heard" if job.heard_s is None else f"supervisor heard {seconds(job.heard_s)} ago"
    whose = (f"`{job.id}`", job.kind, f"for {plain(job.owner)}", f"attempt {job.attempt}")
    return " · ".join([*whose, f"since {local_time(job.since)}", late, heard])


def ended_row(job: JobView) -> dict[str, Any]:
    return {
        "Job": job.title,
        "Ended": state_words(job),
        "Why": shorten(cell(job.error or (f"by {job.cause}" if job.cause else "")), LONGEST),
        "Owner": job.owner,
        "At": local_time(job.finished_at or job.created_at),
        "Id": job.id,
    }


def change_row(record: AuditRecord) -> dict[str, Any]:
    return {
        "Who": record.who,
        "Did": record.action,
        "To": f"{record.kind} {record.target}",
        "At": local_time(record.at),
        "From": record.origin,
        "Detail": shorten(cell(record.detail or ""), LONGEST),
    }
