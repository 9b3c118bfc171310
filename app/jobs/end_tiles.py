"""The figures of an ended job: four tiles in view, the others under Details."""

from __future__ import annotations

import streamlit as st

from app import shell
from app.formatting import local_time, seconds
from app.jobs.job_text import elapsed, phase_rows
from app.overview import tiles
from app.summaries import result_figures
from backend.domain.figures import figure
from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.jobs.kinds import KINDS
from backend.present.words.headline import Tile
from backend.service import Workspace
from backend.service.jobs import view_cache
from backend.service.jobs.jobs import JobView
from backend.service.jobs.progress import JobCost

FIRST = ("Weights", "Same top token", "Peak memory", "Run time", "Cost", "Attempt", "Ended")
"""Labels of the figures in their order; those behind the fourth, and any other, are under Details."""
SHOWN = 4

Figure = tuple[str, str, str | None]


def show(opened: Workspace, job: JobView) -> None:
    """Draw the first four figures as tiles; of an evaluation its variants have tiles."""
    tiles.show([Tile(label, value, detail or "") for label, value, detail in _ordered(opened, job)[: _shown(job)]])


def show_details(opened: Workspace, job: JobView) -> None:
    """Draw the other figures, and the phases with their times."""
    shell.show_figures(_ordered(opened, job)[_shown(job) :])
    rows = phase_rows(job, view_cache.read_snapshot(opened, job.id).events)
    if rows:
        st.dataframe(rows, hide_index=True, alt="Phases with when each began and how long it took")
    else:
        st.caption("The job ended before its first phase.")


def _shown(job: JobView) -> int:
    """Return how many figures are in view."""
    return 0 if job.kind == JobKind.EVALUATE and job.state is JobState.SUCCEEDED else SHOWN


def _ordered(opened: Workspace, job: JobView) -> list[Figure]:
    """Return all figures of an ended job, those in FIRST before the others."""
    _, cost = view_cache.read_time_and_cost(opened, job)
    figures = {label: (label, value, detail) for label, value, detail in _job_figures(job, cost)}
    figures |= {label: (label, value, detail) for label, value, detail in result_figures(job.result)}
    return sorted(figures.values(), key=lambda row: FIRST.index(row[0]) if row[0] in FIRST else len(FIRST))


def _job_figures(job: JobView, cost: JobCost | None) -> list[Figure]:
    """Return what every job has: its run time, its attempt, its end, and its cost where that is known."""
    figures: list[Figure] = [
        ("Run time", seconds(elapsed(job)), None),
        ("Attempt", str(job.attempt), None),
        ("Ended", local_time(job.finished_at), None),
    ]
    if cost is not None:
        figures.append(cost_figure(job, cost))
    return figures


def cost_figure(job: JobView, cost: JobCost) -> Figure:
    """Return what the job cost, or has cost so far, and by which clock and price."""
    at_aws = KINDS[job.kind].at_aws
    how = "by AWS's clock" if at_aws else "this attempt"
    label = "Cost" if job.ended else "Cost so far"
    spent = f"{figure(cost.spent)} USD"
    return label, spent, f"{how}, at {figure(cost.per_hour)} USD per hour"
