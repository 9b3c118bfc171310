"""Audit log: who did what, what failed, what runs where?"""

import streamlit as st

from app import shell
from app.activity import tabs
from app.activity.tabs import TABS, ActivityFilter
from app.session import workspace
from backend.service.jobs import running_jobs
from backend.service.studio import audit

opened = workspace()
st.title("Audit log")
with st.container(horizontal=True, vertical_alignment="bottom"):
    words = st.text_input(
        "Search",
        key="activity_words",
        type="search",
        max_chars=80,
        bind="query-params",
        width=320,
        help="In a title, an id, a host, or what was changed.",
    )
    known, who = audit.people(opened), None
    if len(known) > 1:
        who = st.pills("Who", known, key="activity_who", bind="query-params")
chosen = ActivityFilter(who, words or "")
changes, running, bad = st.tabs(TABS, key="activity_view", bind="query-params")
if changes.open:
    with changes:
        tabs.changes(opened, chosen)
if running.open:
    with running:
        shell.live("running", lambda: tabs.running(opened, chosen), active=bool(running_jobs.list_running(opened)))
if bad.open:
    with bad:
        tabs.failed(opened, chosen)
