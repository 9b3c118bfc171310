"""The three tabs of Activity: running, ended badly, changes. A row or a button leads to its job."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import streamlit as st

from app import navigation
from app.activity import rows
from app.jobs.rows import ICONS
from app.words import plain
from backend.domain.roles import Origin
from backend.service import Workspace
from backend.service.jobs import jobs, running_jobs
from backend.service.studio import audit

PER_PAGE = 25
TABS = (":material/dns: Running", ":material/error: Ended badly", ":material/history: Changes")


class Chosen(NamedTuple):
    """Of whom, and with which words."""

    person: str | None
    words: str

    @property
    def any(self) -> bool:
        return bool(self.person or self.words)


def running(opened: Workspace, chosen: Chosen) -> tuple[tuple[str, str], ...]:
    """A card for each live job; answers with what they are."""
    found = running_jobs.running(opened, owner=chosen.person, words=chosen.words)
    if not found:
        nothing(
            chosen.any, "Nothing is running. What a supervisor has taken will stand here, with its host and device."
        )
    for job in found:
        with st.container(border=True):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(f"**{plain(job.title)}** · {ICONS[job.state]} {job.state}", width="stretch")
                navigation.link("job", "Open", ":material/open_in_new:", id=job.id)
            st.markdown(f":material/dns: {rows.place(job)}")
            st.caption(rows.times(job))
            if job.silent:
                told = "Nobody looks after it now: another supervisor gives it up once its lease has run out."
                st.markdown(f":material/warning: {told}")
    return tuple((job.id, str(job.state)) for job in found)


def ended_badly(opened: Workspace, chosen: Chosen) -> None:
    asked: dict[str, Any] = {
        "states": [str(state) for state in running_jobs.ENDED_BADLY],
        "owner": chosen.person,
        "words": chosen.words,
    }
    page, first = navigation.paged(jobs.count(opened, **asked), PER_PAGE, "bad_page")
    found = jobs.listing(opened, **asked, limit=PER_PAGE, offset=first)
    if not found:
        nothing(chosen.any, "No job has failed, was lost or cancelled.")
        return
    picked = _table(
        [rows.ended(job) for job in found],
        f"bad_{page}_{found[0].id}",
        "Jobs that failed, were lost or cancelled, latest first",
    )
    if picked is not None:
        navigation.go("job", id=found[picked].id)


def changes(opened: Workspace, chosen: Chosen) -> None:
    """Those of others only for an admin."""
    origins = st.pills(
        "From", get_args(Origin), selection_mode="multi", key=navigation.own("from"), bind="query-params"
    )
    who = (chosen.person,) if chosen.person else ()
    asked: dict[str, Any] = {"who": audit.readable(opened) or who, "words": chosen.words, "origins": origins or ()}
    page, first = navigation.paged(audit.count(opened, **asked), PER_PAGE, "changes_page")
    records = audit.listing(opened, **asked, limit=PER_PAGE, offset=first)
    if not records:
        nothing(chosen.any or bool(origins), "Nobody has changed anything yet.")
        return
    picked = _table(
        [rows.change(each) for each in records], f"changes_{page}_{records[0].id}", "Who changed what, latest first"
    )
    if picked is not None and records[picked].kind == "job":
        navigation.go("job", id=records[picked].target)


def nothing(narrowed: bool, sentence: str) -> None:
    if narrowed:
        st.info("Nothing matches these filters: take one away.", icon=":material/filter_alt_off:")
    else:
        st.info(sentence, icon=":material/info:")


def _table(shown: list[dict[str, Any]], key: str, alt: str) -> int | None:
    """The row that was chosen; latest first."""
    picked = st.dataframe(
        shown,
        hide_index=True,
        key=navigation.own(key),
        on_select="rerun",
        selection_mode="single-cell",
        alt=alt,
    )
    st.caption("Choose a row to open its job.")
    return int(picked.selection.cells[0][0]) if picked.selection.cells else None
