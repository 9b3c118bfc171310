"""The parts of a job's page: progress, log, specification, result and next step."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import streamlit as st

from app import charts, navigation, next_steps, shell, url_parameters
from app.formatting import ago, message, plain, seconds, size
from app.jobs import precision, training_panel
from app.jobs.cards import VERBS, perform, permission
from app.jobs.job_text import (
    elapsed,
    log_lines,
    main_verb,
    phase_rows,
    progress_text,
    rate_text,
    time_left,
    verbs,
    warnings,
)
from app.session import disabled_unless_allowed
from app.summaries import model_source, provenance, result_figures, verdicts
from backend.domain.errors import NotFound
from backend.domain.evaluation.document import Variant
from backend.domain.figures import figure
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.jobs.kinds import KINDS
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.domain.roles import Action
from backend.present.charts.layer_errors import layer_errors
from backend.present.words import layer_summary, quality_loss
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs, view_cache
from backend.service.jobs.jobs import JobView
from backend.service.plans import recipe_files
from backend.service.serving import serve

LOG_TAIL = 200_000
DROP = ":material/delete:"


class NextStep(NamedTuple):
    """The next step after a job: a button, and the page that it opens."""

    label: str
    icon: str
    page: str
    params: dict[str, str]


def find_next_step(opened: Workspace, job: JobView, specification: dict[str, Any]) -> NextStep | None:
    """Return the step after a job that runs or has succeeded; None if there is nothing beyond this page."""
    # A job that serves or measures has something to watch.
    if job.kind == JobKind.SERVE and not job.ended:
        return NextStep(
            "Open Playground",
            ":material/chat:",
            "playground",
            url_parameters.playground_parameters(serve.served_sources(opened, job.id)),
        )
    if job.kind == JobKind.EVALUATE and not job.ended:
        return NextStep("Live charts", ":material/monitoring:", "evaluate", {"job": job.id})
    # A job without a result has no next step.
    if job.state is not JobState.SUCCEEDED:
        return None
    # What was made decides the step.
    match job.kind:
        case JobKind.OPTIMIZE | JobKind.MANAGED if "artifact" in job.result:
            parent = ModelCard.model_validate(specification["model" if job.kind == JobKind.OPTIMIZE else "parent"])
            pair = navigation.join_values(model_source(parent), str(job.result["artifact"]))
            return NextStep("Evaluate against the original", ":material/speed:", "evaluate", {"variants": pair})
        case JobKind.TRAIN:
            model = ModelCard.model_validate(specification["model"])
            parameters = {"model": model_source(model), "recipe": training_panel.draft_recipe(opened, job, model)}
            return NextStep("Build with this draft", ":material/construction:", "build", parameters)
        case JobKind.EVALUATE:
            return NextStep(
                "Charts, table and report", ":material/speed:", "evaluate", {"id": str(job.result.get("evaluation"))}
            )
        case JobKind.IMPORT:
            return NextStep("Open the model", ":material/deployed_code:", "model", {"id": str(job.result.get("path"))})
        case JobKind.PAYOFF:
            return NextStep("Build with a draft", ":material/construction:", "build", _speculating(specification))
        case JobKind.INSTALL:
            return NextStep("See the engines", ":material/memory:", "hardware", {})
        case _:
            return None


def _speculating(specification: dict[str, Any]) -> dict[str, str]:
    """Return the address parameters of Build: the model of a payoff map with a draft, under the map's settings."""
    target = Variant.model_validate(specification["variants"][0])
    recipe = Recipe(name="draft", steps=(Speculate(method="draft", draft="auto"),), serving=target.serving)
    return {
        "model": target.source if target.kind == "model" else str(target.original_path),
        "recipe": recipe_files.write_text(recipe),
    }


def show_next_step(opened: Workspace, job: JobView, specification: dict[str, Any]) -> None:
    """Draw the one primary button for the state of the job."""
    verb, step = main_verb(job), find_next_step(opened, job, specification)
    if verb and _button(opened, verb, job, type="primary", shortcut="Alt+E"):
        _perform(opened, verb, job)
    if step and st.button(step.label, type="primary", icon=step.icon, key="job_next-step", shortcut="Alt+E"):
        navigation.go(step.page, **step.params)


def _button(opened: Workspace, verb: str, job: JobView, **appearance: Any) -> bool:
    options = {"help": VERBS[verb].help, **permission(opened, verb, job), **appearance}
    return bool(st.button(verb, key=f"job-{verb}", icon=VERBS[verb].icon, **options))


def _perform(opened: Workspace, verb: str, job: JobView) -> None:
    if after := perform(opened, verb, job.id):
        navigation.go("job", id=after.id)


def show_other_verbs(opened: Workspace, job: JobView) -> None:
    """Draw the other actions."""
    for verb in verbs(job):
        if verb != main_verb(job) and _button(opened, verb, job):
            _perform(opened, verb, job)


def show_change_link(opened: Workspace, job: JobView, specification: dict[str, Any]) -> None:
    """Draw the link to the form with the request of this job filled in."""
    # To the page that can submit such a job, with its fields filled in.
    if job.kind == JobKind.SERVE:
        pair = url_parameters.playground_parameters(serve.served_sources(opened, job.id))
        navigation.link("playground", "Playground", ":material/chat:", **pair)
    elif job.kind in {JobKind.OPTIMIZE, JobKind.MANAGED}:
        aws = job.kind == JobKind.MANAGED
        text = recipe_files.write_text(Recipe.model_validate(specification["recipe"]))
        parent = specification["parent" if aws else "model"]
        known = model_source(ModelCard.model_validate(parent)) if parent else specification["model"]
        place = {"target": specification["target"]} if aws else {}
        navigation.link("build", "Change the recipe", ":material/construction:", model=known, recipe=text, **place)
    elif job.kind == JobKind.TRAIN:
        known = model_source(ModelCard.model_validate(specification["model"]))
        navigation.link(
            "train",
            "Change what is trained",
            ":material/model_training:",
            model=known,
            **training_panel.repeat_parameters(specification["options"]),
        )
    elif job.kind == JobKind.EVALUATE:
        artifact = jobs.show(opened, job.after).result.get("artifact") if job.after else None
        requested = [str(variant["source"]) for variant in specification["variants"]]
        sources = [
            str(artifact) if source == job.after else source for source in requested if artifact or source != job.after
        ]
        navigation.link(
            "evaluate", "Change what is measured", ":material/tune:", variants=navigation.join_values(*sources)
        )


def show_saved_work(opened: Workspace, job: JobView) -> None:
    """Show the saved work of an ended job, from which it can be resumed, and a button that deletes it."""
    bytes_saved = jobs.checkpoint_bytes(opened, job.id) if job.ended else 0
    if not bytes_saved:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="job_kept"):
        st.caption(f"It has {size(bytes_saved)} of saved work, from which `Resume` continues.")
        options = {"help": "After that, a resumed job starts from the beginning. Its record and log remain."}
        options |= disabled_unless_allowed(opened, Action.DROP_KEPT, job.owner)
        st.button(
            f"Drop {size(bytes_saved)}", key="job-drop", icon=DROP, on_click=_drop, args=(opened, job.id), **options
        )


def _drop(opened: Workspace, job_id: str) -> None:
    with shell.errors_inline(st.toast):
        st.toast(f"{size(jobs.drop_checkpoints(opened, job_id))} freed.", icon=DROP)


def show_progress(opened: Workspace, job_id: str) -> str:
    """Draw what changes while the job runs. Return its state, so that the page follows a change."""
    now, events, progress = view_cache.read_snapshot(opened, job_id)
    kind = KINDS[now.kind]
    left, spent = view_cache.read_time_and_cost(opened, now)
    cells: list[tuple[str, str, str | None]] = [("Elapsed", seconds(elapsed(now)), None)]
    if not now.ended:
        st.set_page_config(page_title=f"{now.progress or 0:.0%} {now.title}")
        st.progress(min(1.0, now.progress or 0.0), text=progress_text(now, left=False))
        if not kind.open_ended:
            cells.append(("Time left", *time_left(now, left)))
    if spent:
        how = "by AWS's clock" if kind.at_aws else "this attempt"
        cost = f"{figure(spent.spent)}{' USD' if kind.at_aws else ''}"
        cells.append(("Cost" if now.ended else "Cost so far", cost, f"{how}, at {figure(spent.per_hour)} per hour"))
    cells += [("Attempt", str(now.attempt), None), ("Last event", ago(now.event_at), None)]
    shell.show_figures(cells)
    where = f"{'Ran' if now.ended else 'Runs'} on {now.place}. " if now.place else ""
    if not now.ended:
        st.caption(f"{where}Rate: {rate_text(progress) or 'not counted in this phase'}")
    elif where:
        st.caption(where)
    for warning in warnings(events):
        st.warning(message(warning), icon=":material/warning:")
    rows = phase_rows(now, events)
    if rows:
        st.dataframe(rows, hide_index=True, alt="Phases with when each began and how long it took")
    else:
        st.caption(
            "Phases appear here while the job runs." if not now.ended else "The job ended before its first phase."
        )
    return str(now.state)


def show_log(opened: Workspace, job_id: str) -> str:
    """Draw the tail of the log with search and download."""
    # 1. Search and download.
    text = jobs.logs(opened, job_id, tail_bytes=LOG_TAIL)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        words = st.text_input("Search the log", key="job_log-words", type="search", max_chars=80, width=320)
        st.download_button(
            "Download",
            lambda: jobs.logs(opened, job_id),
            f"{job_id}.log",
            "text/plain",
            on_click="ignore",
            disabled=not text,
        )
    # 2. The matching lines.
    lines, total = log_lines(text, words or "")
    if lines:
        with st.container(height=320, autoscroll=True):
            st.code(lines, language=None, wrap_lines=True)
        st.caption(
            f"{total:,} lines" + (f" match “{plain(words)}”" if words else " at the end of the log, newest last")
        )
    else:
        st.caption("No line of the log matches." if text else "The log is empty.")
    return str(view_cache.read_snapshot(opened, job_id).job.state)


def show_specification(job_id: str, specification: dict[str, Any]) -> None:
    """Draw the specification, to read, copy and download."""
    text = json.dumps(specification, indent=2, ensure_ascii=False)
    with st.expander("The specification, frozen when it was submitted", icon=":material/lock:"):
        st.download_button(
            "Download", text, f"{job_id}.json", "application/json", on_click="ignore", key="job_spec-download"
        )
        st.code(text, language=None, wrap_lines=True, height=320)


def show_optimized(opened: Workspace, job: JobView) -> None:
    """Show size, quality and the error of each linear."""
    # 1. Figures and quality.
    quality = job.result.get("quality") or {}
    if ruined := quality.get("below_floor"):
        st.error(plain(ruined), icon=":material/warning:")
    shell.show_figures(result_figures(job.result))
    if sentence := quality_loss.manifest_words(quality):
        st.caption(
            f"{sentence[:1].upper()}{sentence[1:]}. "
            f"Scored on the held-out text “{plain(quality.get('text') or 'code')}”."
        )
    # 2. The artifact and its next steps.
    try:
        artifact = artifacts.show(opened, str(job.result.get("artifact")))
    except NotFound:
        st.info("The artifact of this job has been deleted.", icon=":material/delete:")
        return
    where = "its files are not part of this demonstration" if opened.read_only else f"in {plain(artifact.path)}"
    scored = "quality measured on held-out text while it was made" if quality else "its quality is not measured yet"
    st.caption(f"Artifact `{artifact.id}`, {where}; {scored}.")
    next_steps.show(opened, [artifact.id], baseline=model_source(artifact.manifest.parent))
    # 3. Precision and layers.
    precision.show(artifact.manifest.bits)
    if artifact.manifest.layers:
        _layers(artifact.manifest)


def _layers(manifest: Manifest) -> None:
    """Show the layers that lose most, as a chart and in words."""
    if verbs := layer_summary.done(manifest.recipe):
        charts.show(layer_errors(manifest.layers, charts.theme(), verbs), "layer-errors")
    for sentence in layer_summary.sentences(manifest.recipe, manifest.layers, manifest.kept_16bit):
        st.markdown(f"- {plain(sentence)}")


def show_measured(opened: Workspace, job: JobView) -> None:
    """Show the verdicts, and where they were measured."""
    try:
        view = evaluations.show(opened, str(job.result.get("evaluation")))
    except NotFound:
        st.info("The evaluation of this job has been deleted.", icon=":material/delete:")
        return
    for sentence in verdicts(view.document):
        st.markdown(f"- {message(sentence)}")
    st.caption(plain(provenance(view)))
    navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)
    own_sources = [result.variant.source for result in view.document.variants if result.variant.kind != "url"]
    ours = list(dict.fromkeys(own_sources))
    if ours:
        next_steps.show(opened, ours, baseline=ours[0], evaluation=view.id)


def show_servers(opened: Workspace, job_id: str) -> str:
    """Show how to send requests to the servers of a serve job. Return how many are ready."""
    servers = serve.endpoints(opened, job_id)
    next_steps.show_clients(opened, servers)
    return str(len(servers))
