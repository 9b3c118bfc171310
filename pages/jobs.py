"""Jobs: what is running, what went wrong?"""

import streamlit as st

from app import navigation, shell
from app.jobs.cards import active_cards, ended_card, job_states
from app.jobs.job_text import ENDINGS, kind_name
from app.navigation import NARROWS
from app.session import choose_owner, workspace
from backend.domain.jobs.jobs import JobKind
from backend.service.jobs import jobs

PER_PAGE = 20
opened = workspace()


def active() -> tuple[tuple[str, str], ...]:
    job_views = jobs.active(opened)
    if job_views:
        active_cards(opened, job_views)
    else:
        st.info("Nothing is running. Jobs that you start appear here with their progress.", icon=":material/info:")
    return job_states(job_views)


with st.container(horizontal=True, vertical_alignment="bottom"):
    st.title("Jobs", width="stretch")
    navigation.link("train", "Train a draft", ":material/model_training:")
    navigation.link("activity", "Audit log", ":material/history:")
    if st.button("Optimize a model", type="primary", icon=":material/construction:", shortcut="Alt+O"):
        navigation.go("build")
shell.live("jobs", active, active=bool(jobs.active(opened)))

st.subheader("Ended")
with st.container(horizontal=True, vertical_alignment="bottom"):
    words = st.text_input("Search title or id", key="jobs_words", type="search", max_chars=80, width=320, **NARROWS)
    states = st.pills("Status", ENDINGS, selection_mode="multi", key="jobs_state", **NARROWS)
    known = [str(job_kind) for job_kind in JobKind]
    kinds = st.pills("Kind", known, format_func=kind_name, selection_mode="multi", key="jobs_kind", **NARROWS)
    others = jobs.count(opened) > jobs.count(opened, owner=opened.actor.name)
    owner = choose_owner(opened, others, "jobs_mine")
chosen = {"states": states or ENDINGS, "kinds": kinds, "words": words or "", "owner": owner}
total = jobs.count(opened, **chosen)
if total:
    _, first = navigation.paginate(total, PER_PAGE)
    ended = jobs.listing(opened, **chosen, limit=PER_PAGE, offset=first)
    st.caption(f"{first + 1} to {first + len(ended)} of {total:,}, newest first")
    for job in ended:
        ended_card(opened, job)
elif words or states or kinds or owner:
    st.info("No ended job matches these filters. Remove a filter.", icon=":material/filter_alt_off:")
else:
    st.info("No job has ended yet. Ended jobs appear here with their status.", icon=":material/history:")
    navigation.link("home", "Three ways to start", ":material/home:")
