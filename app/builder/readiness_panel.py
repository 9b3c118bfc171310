"""Draw the readiness of the recipe being built: the summary, the reasons, the estimate and the button that submits."""

from __future__ import annotations

import streamlit as st

from app import idempotency, navigation, shell
from app.builder import estimate_panel, recipe_form, target_choice
from app.builder.job_terms import JobTerms
from app.builder.readiness import (
    MADE_HERE,
    Blocked,
    Forecast,
    Readiness,
    Ready,
    Refused,
    Unknown,
    find_case,
    find_forecast,
)
from app.formatting import duration_range, message, plain, size
from app.load_bar import address
from app.summaries import model_source
from backend.domain.jobs.eta import TimeLeft
from backend.domain.machine.targets import target_kind
from backend.domain.model.facts import ModelCard, ModelFacts, PublishedModel
from backend.domain.planner import estimate
from backend.domain.recipe.recipe import Recipe, Serving
from backend.domain.recipe.serving import source_settings
from backend.domain.recipe.step_words import steps_line
from backend.service import Workspace
from backend.service.plans import auto_target, optimize, sagemaker_jobs
from backend.service.plans.cases import Case
from backend.service.plans.neuron_compilation import CompilationPreview

PURPOSE, REFUSED = "optimize", "build_refused"
BUTTONS = {"sagemaker": "Optimize at AWS", "neuron": "Compile"}
"""Label of the button by the kind of target; Optimize for the others."""
BACKGROUNDS = {"light": "#ffffff", "dark": "#12161a"}
"""backgroundColor of .streamlit/config.toml."""


def sticky_style(theme: str) -> str:
    """Return CSS that keeps title and button at the top, and on a wide screen the estimate beside the steps."""
    return f"""<style>
[data-testid="stHeader"] {{ background: {BACKGROUNDS[theme]} }}
[data-testid="stLayoutWrapper"]:has(> .st-key-build_head), .st-key-build_head
  {{ position: sticky; top: 3.5rem; z-index: 50; background: {BACKGROUNDS[theme]} }}
@media (min-width: 900px) {{
  [data-testid="stColumn"]:has(.st-key-build_side)
    {{ position: sticky; top: 8rem; align-self: flex-start; max-height: calc(100vh - 9rem); overflow-y: auto }}
}}</style>"""


def show_summary(opened: Workspace, model: ModelFacts, readiness: Readiness) -> None:
    """Show whether the recipe is valid and what it needs, within the first screen of any width."""
    # What is unknown or refused by the rules comes first.
    if isinstance(readiness, Unknown):
        _show_unknown(readiness)
        return
    case = readiness.forecast.case
    if isinstance(readiness, Refused):
        _show_refused(opened, case)
        return
    # An empty recipe is no error.
    if not case.recipe.steps and not opened.read_only:
        _show_without_steps(model, case.recipe.serving)
        return
    # A valid recipe may still be blocked on this machine.
    if isinstance(readiness, Blocked) and not readiness.can_be_fixed:
        notice = st.info if opened.read_only else st.error
        notice(message(readiness.obstacle), icon=":material/block:")
        return
    _show_valid(model, readiness)


def _show_without_steps(model: ModelFacts, serving: Serving) -> None:
    """Show what to do next; serving settings alone need no job, only an evaluation."""
    settings = source_settings.write_differences(serving)
    if not settings or not isinstance(model, ModelCard):
        st.info("No steps yet: choose a goal below, or add a step.", icon=":material/add_circle:")
        return
    st.info("No steps, only serving settings: nothing is to be made. Compare them with the default.")
    source = model_source(model)
    variants = navigation.join_values(source, f"{source}{settings}")
    navigation.link("evaluate", "Evaluate these settings", ":material/speed:", variants=variants)


def _show_unknown(readiness: Unknown) -> None:
    st.error(message(readiness.message), icon=":material/block:")
    if readiness.unknown_target:
        st.button("Plan for this machine", key="build_target-local", on_click=target_choice.set_target, args=("local",))


def _show_valid(model: ModelFacts, readiness: Blocked | Ready) -> None:
    """Show what the job needs, then the one thing that is still missing, if any."""
    # 1. What it needs.
    case, preview = readiness.forecast.case, readiness.preview
    duration = readiness.duration if isinstance(readiness, Ready) else None
    needs = ", ".join(_needs(model, readiness.forecast, duration))
    st.success(f"Valid for this model {_where(case)}: {needs}.", icon=":material/check_circle:")
    # 2. Whether the compile cache has it already.
    if isinstance(preview, CompilationPreview):
        icon = ":material/inventory_2:" if preview.lookup.state == "hit" else ":material/memory:"
        st.info(message(preview.lookup.sentence), icon=icon)
    # 3. What is missing, or where it will be served.
    if isinstance(readiness, Blocked):
        if isinstance(model, PublishedModel) and case.target.kind != "sagemaker":
            st.info(message(readiness.obstacle), icon=":material/download:")
            label = f"Import {plain(model.hf_repo)}"
            navigation.link("import", label, ":material/download:", import_folder=model.hf_repo)
        else:
            st.info(message(readiness.obstacle), icon=":material/edit_note:")
        return
    spec = readiness.submission.spec
    if spec and spec.deployment and preview is None:
        st.info(message(optimize.where_text(model, spec.deployment, case.recipe)))


def _where(case: Case) -> str:
    """Return where the recipe was checked for, and what happens there."""
    name = plain(case.target.instance.name if case.target.instance else case.target.name)
    match case.target.kind:
        case "local":
            return "on this machine"
        case "sagemaker":
            return f"by SageMaker's toolkit, which optimizes it for {name}"
        case "neuron":
            return f"compiled for {name}"
        case _:
            return f"on {name}, for planning"


def _show_refused(opened: Workspace, case: Case) -> None:
    """Show the first reason; if only memory is missing, also the instances where the model fits."""
    reasons = case.verdict.reasons
    if not reasons and case.choice:  # it could be served, but the goal is not met
        st.error(message(case.choice.why), icon=":material/block:")
        return
    more = f" And {len(reasons) - 1} more, below." if len(reasons) > 1 else ""
    where = f"On {plain(case.target.name)}: " if case.choice else ""
    st.error(f"{where}{message(reasons[0].message)}{more}", icon=":material/block:")
    if case.verdict.outcome == "does-not-fit" and not case.choice:
        _show_fitting_instances(opened, case)


def _show_fitting_instances(opened: Workspace, case: Case) -> None:
    instances = auto_target.fitting_instances(opened, case.model, case.recipe)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("It fits on:" if instances else "It fits on none of the known instances.")
        for instance in instances:
            price = f", {instance.price_per_hour:,.4g} USD per hour" if instance.price_per_hour else ""
            name = instance.target
            st.button(f"{name}{price}", key=f"build_fits-{name}", on_click=target_choice.set_target, args=(name,))


def _needs(model: ModelFacts, forecast: Forecast, duration: TimeLeft | None) -> list[str]:
    """Return weights, disk, memory, time and kernels of the job, a phrase for each."""
    case, needs = forecast.case, forecast.needs
    phrases = [f"weights {size(estimate.original_bytes(model))} to about {size(needs.weights_bytes)}"]
    if not sagemaker_jobs.is_sagemaker(case.target.name):
        phrases += [f"disk {size(needs.disk_bytes)}", f"memory {size(needs.memory_bytes)}"]
    phrases.append(_duration(forecast, duration))
    plan = case.verdict.plan
    phrases += [f"served by {step.kernel}" for step in (plan.steps if plan else ()) if step.kernel]
    return phrases


def _duration(forecast: Forecast, duration: TimeLeft | None) -> str:
    """Return the duration of the job in words: that of the table, or that here if the table is of another machine."""
    if duration and forecast.case.target.kind not in MADE_HERE:
        return f"{duration_range(duration.low, duration.high)} here"
    seconds = forecast.estimate.job_seconds if forecast.estimate else None
    if seconds is None:
        return "duration unknown"
    if not seconds[1]:
        return "no job needed"
    return duration_range(*seconds) if duration else f"estimated {duration_range(*seconds)}"


def show_reasons(case: Case | None) -> None:
    """Show every reason with its rule and source, and the closest valid recipe."""
    if case is None:
        return
    verdict = case.verdict
    # 1. The reasons; the first one is already shown above the page.
    for number, reason in enumerate(verdict.reasons):
        if number:
            st.markdown(f":material/block: {message(reason.message)}")
        start = "" if number else ":material/block: Why not: "
        st.caption(f"{start}Rule {plain(reason.rule)}. Source: {message(reason.source)}")
    # 2. The closest valid recipe.
    suggestion, target = verdict.suggestion, verdict.suggestion_target
    if suggestion is not None:
        where = f" on {plain(target)}" if target else ""
        st.markdown(f"Closest valid recipe: **{plain(steps_line(suggestion))}**{where}")
        st.button(
            "Use the closest valid recipe",
            key="build_nearest",
            icon=":material/build:",
            on_click=_use_suggestion,
            args=(suggestion, target),
        )


def show_notes(case: Case | None) -> None:
    """Show what the plan says besides: what the rules corrected, and what a figure rests on."""
    plan = case.verdict.plan if case else None
    if plan and plan.notes:
        st.caption("\n".join(f"- {message(note)}" for note in plan.notes))


def _use_suggestion(recipe: Recipe, target: str | None) -> None:
    recipe_form.set_recipe(recipe)
    if target:
        target_choice.set_target(target)


def show_estimate(opened: Workspace, readiness: Readiness) -> None:
    """Show what the job needs and what serving gives; say what is unknown."""
    st.markdown("**Estimate**")
    forecast = find_forecast(readiness)
    if forecast is None:
        st.caption("Nothing can be estimated until the recipe can be read for this model and target.")
        return
    # 1. Where it would run.
    case, expected = forecast.case, forecast.estimate
    if case.choice is not None:
        estimate_panel.show_choice(case.choice)
    if expected is None:
        estimate_panel.show_needs(forecast.needs)
        return
    # 2. What the duration of the job on this machine rests on.
    if target_kind(expected.target) == "local":
        duration = readiness.duration if isinstance(readiness, Ready) else None
        if duration and expected.job_seconds and expected.job_seconds[1]:
            st.caption(f"Duration: {duration_range(*expected.job_seconds)}, {duration.basis}.")
        elif expected.job_seconds is None:
            st.caption("Duration unknown: no job of this kind has succeeded here yet.")
    # 3. Speed, memory and price; where the target has none, the instance with the lowest.
    estimate_panel.show(opened, expected)
    if case.choice is None and expected.price_per_hour is None:
        choice = auto_target.choose_target(opened, case.model, case.recipe, address.current().goal, expected.load)
        estimate_panel.show_cheapest(choice)


def submit_button(opened: Workspace, readiness: Readiness, terms: JobTerms) -> None:
    """Draw the button that submits one job per recipe and target, however often it is clicked; then the link to it."""
    # 1. A job that was submitted for exactly this is linked.
    submission = readiness.submission if isinstance(readiness, Ready) else None
    fingerprint = f"{submission.mark} {terms.mark}" if submission else ""
    job_id = idempotency.submitted_job(PURPOSE, fingerprint) if fingerprint else None
    if job_id:
        if st.session_state.get("build_optimize"):  # a second click that came while the first one left the page
            navigation.go("job", id=job_id)
        navigation.link("job", "Open the job", ":material/monitoring:", id=job_id)
        st.button("Run it again", key="build_again", on_click=idempotency.renew, args=(PURPOSE,))
        return
    # 2. The button, with the reason if it is disabled.
    case = find_case(readiness)
    clicked = st.button(
        BUTTONS.get(case.target.kind if case else "", "Optimize"),
        key="build_optimize",
        type="primary",
        icon=":material/play_arrow:",
        shortcut="Ctrl+Enter",
        disabled=submission is None or terms.obstacle is not None,
        help=_why_not(readiness),
    )
    # 3. Submit. No callback: it would get the recipe before the last typed field was read.
    if clicked and submission:
        with shell.errors_in_session(REFUSED):
            job = submission.submit(idempotency.submission_key(PURPOSE, fingerprint), terms)
            idempotency.remember_job(PURPOSE, job.id)
            navigation.go("job", id=job.id)
        st.rerun()
    shell.show_session_error(REFUSED)


def _why_not(readiness: Readiness) -> str | None:
    """Return why the button is disabled; None if it can be clicked."""
    if isinstance(readiness, Ready):
        return None
    if isinstance(readiness, Blocked):
        return message(readiness.obstacle)
    return "The recipe must be valid first. The reasons are shown beside it."
