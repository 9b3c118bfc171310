"""Jobs: what is running, what went wrong?"""

import streamlit as st

from app.jobs import elapsed, row, seconds, status
from app.session import supervisor_banner, workspace
from backend.domain.errors import NotNow
from backend.domain.jobs import LIVE, TERMINAL, JobState
from backend.service import jobs

opened = workspace()
st.title("Jobs")
supervisor_banner(opened)


def cancel(job_id: str) -> None:
    try:
        jobs.cancel(opened, job_id)
    except NotNow as error:
        st.toast(str(error))


@st.fragment(run_every="2s")
def active() -> None:
    waiting = [str(state) for state in (*LIVE, JobState.QUEUED)]
    current = jobs.listing(opened, states=waiting)
    if not current:
        st.info("Nothing is running. `whetstone demo` runs the whole loop on the starter model.", icon=":material/info:")
    for job in reversed(current):
        with st.container(border=True):
            left, right = st.columns([5, 1], vertical_alignment="center")
            left.markdown(f"**{job.title}** · {status(job)} · `{job.id}`")
            share = job.progress or 0.0
            left.progress(
                share, text=f"{job.message or 'waiting'} · {share:.0%} · {seconds(elapsed(job))} · left {seconds(job.eta_s)}"
            )
            right.button("Cancel", key=f"cancel-{job.id}", on_click=cancel, args=(job.id,), disabled=job.cancel_requested)


active()
st.subheader("History")
ended = jobs.listing(opened, states=[str(state) for state in TERMINAL], limit=200)
if ended:
    st.dataframe([row(job) for job in ended], hide_index=True, width="stretch")
else:
    st.caption("Jobs that have ended will stand here, with how they ended.")
