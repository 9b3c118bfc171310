"""Job: how is it going, and what came of it?"""

import streamlit as st

from app import navigation, next_steps, shell
from app.drafts import payoff_panel
from app.formatting import local_time, plain, shorten
from app.jobs import job_page as job_view
from app.jobs import queue_and_attempts, recovery_panel, resource_panel, sagemaker_panel, training_panel
from app.jobs.cards import cancel_button, show_end
from app.jobs.job_text import kind_name, status
from app.session import workspace
from backend.domain.errors import NotFound
from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.jobs.kinds import KINDS
from backend.service.jobs import jobs, view_cache

opened = workspace()
job_id = st.query_params.get("id", "")
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
specification, at_aws = jobs.specification(opened, job.id), KINDS[job.kind].at_aws

head, action = st.columns([5, 3], vertical_alignment="bottom")
head.title(plain(job.title))
with action.container(horizontal=True, horizontal_alignment="right"):
    job_view.show_next_step(opened, job, specification)
show_end(job)
st.caption(
    f"{status(job)} · `{job.id}` · {kind_name(job.kind)} · by {plain(job.owner)} "
    f"· submitted {local_time(job.created_at)}"
)
with st.container(horizontal=True, vertical_alignment="center"):
    if not job.ended:
        cancel_button(opened, job)
    job_view.show_other_verbs(opened, job)
    job_view.show_change_link(opened, job, specification)
    if job.parent:
        navigation.link("job", f"Made from {job.parent}", ":material/account_tree:", id=job.parent)
    navigation.link("jobs", "All jobs", ":material/list:")
queue_and_attempts.panel(opened, job)
job_view.show_saved_work(opened, job)

if at_aws and job.state is not JobState.QUEUED:
    shell.live("managed", lambda: sagemaker_panel.panel(opened, job.id), active=not job.ended)
    if job.state is JobState.SUCCEEDED:
        sagemaker_panel.show_result(job, specification)
if job.kind == JobKind.TRAIN and job.state is not JobState.QUEUED:
    training_panel.panel(opened, job, specification)
elif job.state is JobState.SUCCEEDED and (job.kind == JobKind.OPTIMIZE or "artifact" in job.result):
    job_view.show_optimized(opened, job)
    recovery_panel.panel(opened, job, specification)
elif job.state is JobState.SUCCEEDED and job.kind == JobKind.EVALUATE:
    job_view.show_measured(opened, job)
elif job.state is JobState.SUCCEEDED and job.kind == JobKind.PAYOFF:
    payoff_panel.show_measured(job)
elif job.state is JobState.SUCCEEDED and job.kind == JobKind.IMPORT:
    next_steps.show(opened, [str(job.result.get("path"))])
elif job.kind == JobKind.SERVE and not job.ended:
    shell.live("serves", lambda: job_view.show_servers(opened, job.id), active=True)
elif job.state is JobState.SUCCEEDED and job.kind == JobKind.SERVE:
    st.info(plain(str(job.result.get("summary"))), icon=":material/stop_circle:")
shell.live("job", lambda: job_view.show_progress(opened, job.id), active=not job.ended)
if job.state is not JobState.SUCCEEDED:
    recovery_panel.panel(opened, job, specification)
st.subheader("Log")
shell.live("log", lambda: job_view.show_log(opened, job.id), active=not job.ended)
if not at_aws:
    st.subheader("Resources")
    shell.live("resources", lambda: resource_panel.panel(opened, job.id), active=not job.ended, every="5s")
job_view.show_specification(job.id, specification)
