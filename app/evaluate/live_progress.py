"""Show a running evaluation: progress, approximate points so far, and the step to its result."""

from __future__ import annotations

import streamlit as st

from app import charts, idempotency, navigation, shell, url_parameters
from app.evaluate.form import PURPOSE
from app.formatting import plain, shorten
from app.jobs.cards import cancel_button, show_end
from app.jobs.job_text import headline, kind_name, progress_text, tab_words
from app.session import disabled_unless_allowed
from backend.domain.errors import NotFound
from backend.domain.figures import counted
from backend.domain.jobs.jobs import JobKind, JobState
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs


def show(opened: Workspace, job_id: str) -> None:
    """Show the job, or a sentence if it is unknown or no evaluation; open the result once there is one."""
    # 1. Find the evaluation.
    try:
        job = jobs.show(opened, job_id)
    except NotFound:
        shell.refuse_page(
            f"There is no job {plain(shorten(job_id, 60))} here: it may belong to another home.",
            "evaluate",
            "New evaluation",
            new="true",
        )
        return
    if job.kind != JobKind.EVALUATE:
        shell.refuse_page(f"Job {job_id} is no evaluation: it is of kind {kind_name(job.kind)}.", "jobs", "All jobs")
        return
    # 2. Open the result of one that has succeeded.
    if job.state is JobState.SUCCEEDED:
        idempotency.renew(PURPOSE)
        url_parameters.query().replace({"id": str(job.result["evaluation"])})
        st.rerun()
    # 3. Show the others while they run.
    names = [str(variant["name"]) for variant in jobs.specification(opened, job_id)["variants"]]
    drawn = str(job.state)
    shell.live(f"evaluate-{job_id}", lambda: _panel(opened, job_id, names), active=not job.ended, drawn=drawn)


def _panel(opened: Workspace, job_id: str, names: list[str]) -> str:
    # State and progress, or how it ended with a button to measure again.
    job = jobs.show(opened, job_id)
    navigation.name_tab(tab_words(job))
    st.markdown(headline(job))
    if job.ended:
        show_end(job, f"The evaluation is {job.state}: there is no result.")
        if st.button(
            "Measure again",
            type="primary",
            key="evaluate_measure-again",
            icon=":material/refresh:",
            **disabled_unless_allowed(opened),
        ):
            with shell.errors_inline():
                url_parameters.query().replace({"job": jobs.retry(opened, job_id).id})
                st.rerun(scope="app")
    else:
        st.progress(job.progress or 0.0, text=progress_text(job))
        cancel_button(opened, job)
    # The job's page, and what the runs have shown so far.
    navigation.link("job", "Phases, log and resources", ":material/work:", id=job_id)
    points = evaluations.read_progress_points(opened, job_id)
    charts.show(charts.live_throughput(points, names, charts.theme()), f"live-{job_id}")
    st.caption(
        f"{counted(len(points), 'run')} so far. Approximate: these are counters while it runs; exact figures replace "
        "them at the end."
    )
    return str(job.state)
