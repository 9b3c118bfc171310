"""Job: how is it going, and what came of it?"""

import streamlit as st

from app import navigation, shell, url_parameters
from app.formatting import local_time, plain, shorten
from app.jobs import end_tiles, kind_views, queue_and_attempts, recovery_panel
from app.jobs import job_page as job_view
from app.jobs.cards import cancel_button, show_end
from app.jobs.job_text import kind_name, short_title, status, warnings
from app.overview import caveats
from app.session import workspace
from backend.domain.errors import NotFound
from backend.domain.jobs.jobs import JobState
from backend.service.jobs import jobs, view_cache

opened = workspace()
job_id = url_parameters.query().get("id", "")
if not job_id:
    st.title("Job")
    st.info("Choose a job in the list to see it here.", icon=":material/info:")
    navigation.link("jobs", "All jobs", ":material/list:")
    st.stop()
try:
    job = jobs.show(opened, job_id)
except NotFound:
    sentence = f"There is no job {plain(shorten(job_id, 60))} here: it may belong to another installation."
    shell.refuse_page(sentence, "jobs", "All jobs", title="Job")
view_cache.forget(opened, job.id)
specification = jobs.specification(opened, job.id)

head, action = st.columns([5, 3], vertical_alignment="bottom")
head.title(plain(short_title(job)), help=plain(job.title) if short_title(job) != job.title else None)
with action.container(horizontal=True, horizontal_alignment="right"):
    job_view.show_next_step(opened, job, specification)
show_end(job)
st.caption(
    f"`{job.id}` · {kind_name(job.kind)} · by {plain(job.owner)} "
    f"· submitted {local_time(job.created_at)} · {status(job)}"  # what changes comes last: nothing beside it moves
)
with st.container(horizontal=True, vertical_alignment="center"):
    navigation.link("jobs", "All jobs", ":material/list:")
    if job.parent:
        navigation.link("job", f"Made from {job.parent}", ":material/account_tree:", id=job.parent)
    kind_views.show_change_link(opened, job, specification)
    if not job.ended:
        cancel_button(opened, job)
    job_view.show_other_verbs(opened, job)
    if job.ended:
        caveats.show(warnings(view_cache.read_snapshot(opened, job.id).events))
# The watch of a job and the record of one that has ended are two parts: nothing of the first moves to make room for the
# second.
with st.container(key="job_record" if job.ended else "job_live"):
    queue_and_attempts.panel(opened, job)
    job_view.show_saved_work(opened, job)
    if job.ended:
        end_tiles.show(opened, job)
    kind_views.show_result(opened, job, specification)
    shell.live("job", lambda: job_view.show_progress(opened, job.id), active=not job.ended, drawn=str(job.state))
    if not job.ended:
        with job_view.reserve_phases():
            if job.state is JobState.QUEUED:
                queue_and_attempts.show_queued(opened, job)
            else:
                shell.live("phases", lambda: job_view.show_phases(opened, job.id), active=True)
    if job.state is not JobState.SUCCEEDED:
        recovery_panel.panel(opened, job, specification)
    job_view.show_tabs(opened, job, specification)
