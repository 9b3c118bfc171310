"""Show a toast when a job ends, on whatever page is open."""

from __future__ import annotations

import streamlit as st

from app import navigation, url_parameters
from app.formatting import plain
from app.jobs.job_text import ICONS
from backend.service import Workspace
from backend.service.jobs import jobs

EVERY = "4s"
WATCHED = "shell_watched"
"""Session key: the jobs that were active at the last look, id -> title."""


def watch_jobs(opened: Workspace) -> None:
    """Look every few seconds while jobs are active. A job that has ended is announced once, except on its own page."""
    watched: dict[str, str] = st.session_state.setdefault(WATCHED, {})
    every = EVERY if watched or jobs.active(opened) else None
    st.fragment(_toast_finished, run_every=every, key=navigation.page_key("ends"))(opened, watched)


def _toast_finished(opened: Workspace, watched: dict[str, str]) -> None:
    active = {job.id: job.title for job in jobs.active(opened)}
    for job_id in watched.keys() - active.keys():
        job = jobs.show(opened, job_id)
        if url_parameters.query().get("id") != job_id:
            words = f"**{plain(job.title)}** {job.state}. [Open the job](/job?id={job_id})"
            st.toast(words, icon=ICONS[job.state], duration="long")
    watched.clear()
    watched.update(active)
