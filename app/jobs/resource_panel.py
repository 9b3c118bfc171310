"""The memory and processor use of a job on its page, as a chart and in words."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import charts
from app.formatting import seconds, size
from backend.present.charts import resources
from backend.service import Workspace
from backend.service.jobs import view_cache
from backend.service.jobs.progress import ResourceUse


def use_sentence(uses: Sequence[ResourceUse]) -> str:
    """Return the chart in a sentence."""
    highest, last = max(use.rss_bytes for use in uses), uses[-1]
    cpu = sum(use.cpu_percent for use in uses) / len(uses)
    return (
        f"At most {size(highest)} of memory and on average {cpu:.0f} % of one core, over {seconds(last.at_s)}; "
        f"at the end {size(last.rss_bytes)} and {last.cpu_percent:.0f} %."
    )


def panel(opened: Workspace, job_id: str) -> str:
    """Draw the chart. Return the state of the job."""
    job = view_cache.read_snapshot(opened, job_id).job
    uses = view_cache.read_resource_use(opened, job)
    if not uses and job.ended:
        st.caption("Nothing was recorded: the job ended before the first reading.")
    elif not uses:
        st.caption("Memory and processor use appear here a few seconds after the start.")
    else:
        charts.show(resources.resources(uses, charts.theme()), "resources", use_sentence(uses))
        st.caption(f"{use_sentence(uses)} Of the worker and all it started, read from /proc; the latest attempt.")
    return str(job.state)
