"""Job: how is it going, and what came of it?"""

import streamlit as st

from app import charts, navigation, playground_pick, shell
from app.job_cards import act, cancel_button
from app.jobs import elapsed, last_heard, log_lines, phase_rows, phases, progress_text, rate, status, verbs, warnings
from app.results import figures, provenance, source, verdicts
from app.session import frozen, workspace
from app.words import plain, seconds, when
from backend.domain.charts_layers import layer_errors
from backend.domain.errors import NotFound
from backend.domain.jobs import JobKind, JobState
from backend.domain.model import ModelCard
from backend.service import artifacts, evaluations, jobs, serve

LOG_TAIL = 200_000
opened = workspace()
wanted = st.query_params.get("id", "")
if not wanted:
    st.title("Job")
    st.info("Choose a job in the list, and what it does will stand here.", icon=":material/info:")
    navigation.link("jobs", "All jobs", ":material/list:")
    st.stop()
try:
    job = jobs.show(opened, wanted)
except NotFound:
    shell.refuse(f"There is no job {plain(wanted[:60])}: it may belong to another installation.", "jobs", "All jobs", title="Job")


def header() -> None:
    st.caption(f"{status(job)} · `{job.id}` · {job.kind} · by {plain(job.owner)} · submitted {when(job.created_at)}")
    with st.container(horizontal=True, vertical_alignment="center"):
        for verb in verbs(job):
            if st.button(verb, key=f"job-{verb}", **frozen(opened)) and (after := act(opened, verb, job.id)):
                navigation.go("job", id=after.id)
        if not job.ended:
            cancel_button(opened, job, "job")
        if job.kind == JobKind.EVALUATE and not job.ended:
            navigation.link("evaluate", "Live charts", ":material/monitoring:", job=job.id)
        if job.kind == JobKind.SERVE:
            navigation.link(
                "playground", "Playground", ":material/chat:", **playground_pick.address(serve.served(opened, job.id))
            )
        if job.parent:
            navigation.link("job", f"Made from {job.parent}", ":material/account_tree:", id=job.parent)
        navigation.link("jobs", "All jobs", ":material/list:")


def watch() -> str:
    """What moves while it runs; answers with the state, so that the page follows when that changes."""
    now, events = jobs.show(opened, job.id), jobs.timeline(opened, job.id)
    if not now.ended:
        st.progress(min(1.0, now.progress or 0.0), text=progress_text(now))
    cells = [("Elapsed", seconds(elapsed(now))), ("Attempt", str(now.attempt)), ("Last event", last_heard(now))]
    if not now.ended:
        cells.insert(1, ("Time left, about", seconds(now.eta_s)))
    shell.figures((label, value, None) for label, value in cells)
    if not now.ended:
        st.caption(f"Rate: {rate(jobs.latest_progress(opened, job.id)) or 'this phase is not counted'}")
    for warning in warnings(events):
        st.warning(plain(warning), icon=":material/warning:")
    rows = phase_rows(phases(now, events), ended=now.ended)
    if rows:
        st.dataframe(rows, hide_index=True, alt="Phases with when each began and how long it took")
    else:
        st.caption("Phases will stand here as it goes through them." if not now.ended else "It ended before its first phase.")
    return str(now.state)


def log() -> str:
    text = jobs.logs(opened, job.id, tail_bytes=LOG_TAIL)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        words = st.text_input("Search the log", key="log-words", type="search", max_chars=80, width=320)
        st.download_button(
            "Download", lambda: jobs.logs(opened, job.id), f"{job.id}.log", "text/plain", on_click="ignore", disabled=not text
        )
    lines, found = log_lines(text, words or "")
    if lines:
        with st.container(height=320, autoscroll=True):
            st.code(lines, language=None, wrap_lines=True)
        st.caption(f"{found:,} lines" + (f" hold “{plain(words)}”" if words else " in the tail, newest last"))
    else:
        st.caption("No line of the log holds that." if text else "The log is empty so far.")
    return str(jobs.show(opened, job.id).state)


def optimized() -> None:
    """Size, quality and the error of each linear."""
    shell.figures(figures(job.result))
    try:
        artifact = artifacts.show(opened, str(job.result.get("artifact")))
    except NotFound:
        st.info("The artifact that this job made has been deleted since.", icon=":material/delete:")
        return
    where = "its files are not part of this demonstration" if opened.read_only else f"in {plain(artifact.path)}"
    st.caption(f"Artifact `{artifact.id}`, {where}; quality measured on held-out text while it was made.")
    if not opened.read_only:
        pair = playground_pick.address([source(artifact.manifest.parent), artifact.id])
        navigation.link("playground", "Talk to it beside the original", ":material/chat:", **pair)
    if artifact.manifest.layers:
        charts.show(layer_errors(artifact.manifest.layers, charts.theme()), "layer-errors")


def measured() -> None:
    try:
        view = evaluations.show(opened, str(job.result.get("evaluation")))
    except NotFound:
        st.info("The evaluation that this job made has been deleted since.", icon=":material/delete:")
        return
    for sentence in verdicts(view.document):
        st.markdown(f"- {sentence}")
    st.caption(plain(provenance(view)))
    with st.container(horizontal=True):
        navigation.link("evaluate", "Charts, table and report", ":material/speed:", id=view.id)
        navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)


specification = jobs.specification(opened, job.id)
succeeded = job.state is JobState.SUCCEEDED
head, action = st.columns([5, 3], vertical_alignment="bottom")
head.title(plain(job.title))
if succeeded and job.kind == JobKind.OPTIMIZE:
    original = source(ModelCard.model_validate(specification["model"]))
    with action.container(horizontal_alignment="right"):
        if st.button("Evaluate against the original", type="primary", icon=":material/speed:", shortcut="Alt+E"):
            navigation.go("evaluate", variants=f"{original},{job.result.get('artifact')}")
header()
if job.error:
    st.error(plain(job.error), icon=":material/error:")
if succeeded and job.kind == JobKind.OPTIMIZE:
    optimized()
elif succeeded and job.kind == JobKind.EVALUATE:
    measured()
elif succeeded and job.kind == JobKind.SERVE:
    st.info(plain(str(job.result.get("summary"))), icon=":material/stop_circle:")
elif succeeded:
    navigation.link("hardware", "See the engines", ":material/memory:")
shell.live("job", watch, active=not job.ended)
st.subheader("Log")
shell.live("log", log, active=not job.ended)
with st.expander("The specification, frozen when it was submitted", icon=":material/lock:"):
    st.json(specification, expanded=1)
