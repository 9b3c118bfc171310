"""Whether the recipe being built is valid where it is to be served, why not and what would be, and the button that
submits it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import streamlit as st

from app import idempotency, navigation, shell
from app.builder import estimate_panel as recipe_estimate
from app.builder import job_terms, recipe_form
from app.builder import target_choice as recipe_target
from app.builder.aws_settings import Preview
from app.builder.job_terms import JobTerms, Submission
from app.builder.target_choice import PlanRequest
from app.field_labels import error_sentence
from app.formatting import duration_range, message, plain, size
from backend.domain.errors import EngineMissing, InvalidOptions, WhetstoneError
from backend.domain.jobs.eta import TimeLeft
from backend.domain.jobs.jobs import JobKind
from backend.domain.machine.targets import target_kind
from backend.domain.model.facts import ModelFacts, PublishedModel
from backend.domain.planner import estimate
from backend.domain.planner.estimate import Estimate, JobNeeds
from backend.domain.planner.target_choice import TargetGoal
from backend.domain.recipe.recipe import Recipe
from backend.domain.recipe.step_words import steps_line
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.jobs import progress
from backend.service.plans import auto_target, cases, estimates, neuron_compilation, optimize, sagemaker_jobs
from backend.service.plans.cases import Case
from backend.service.plans.neuron_compilation import CompilationPreview
from backend.service.plans.optimize import PreparedOptimize

CHEAPEST_TOKEN = TargetGoal(wanted="throughput")
PURPOSE, REFUSED = "optimize", "build_refused"
BUTTONS = {"sagemaker": "Optimize at AWS", "neuron": "Compile"}
"""What the button says by the kind of target, else Optimize."""


GROUNDS = {"light": "#ffffff", "dark": "#12161a"}
"""backgroundColor of .streamlit/config.toml."""


def sticky_style(theme: str) -> str:
    """Title and button stay at the top, on a wide screen the estimate beside the steps, which scrolls by itself."""
    return f"""<style>
[data-testid="stHeader"] {{ background: {GROUNDS[theme]} }}
[data-testid="stLayoutWrapper"]:has(> .st-key-build_head), .st-key-build_head
  {{ position: sticky; top: 3.5rem; z-index: 50; background: {GROUNDS[theme]} }}
@media (min-width: 900px) {{
  [data-testid="stColumn"]:has(.st-key-build_side)
    {{ position: sticky; top: 8rem; align-self: flex-start; max-height: calc(100vh - 9rem); overflow-y: auto }}
}}</style>"""


class Judgement(NamedTuple):
    """`case` is what was chosen, None where its target or draft is not known; `ready` is what can be submitted, and
    without it `obstacle` says why not, unless the recipe is not valid. `lacking`: the recipe is valid, and something
    else is still needed. `shown`: what AWS would be asked, or Neuron's compiler."""

    case: Case | None = None
    need: JobNeeds | None = None
    estimate: Estimate | None = None
    ready: Submission | None = None
    duration: TimeLeft | None = None
    obstacle: str | None = None
    lacking: bool = False
    shown: Preview | None = None
    unknown_target: bool = False

    @property
    def place(self) -> str:
        """A target that exists, to try other recipes on."""
        return self.case.target.name if self.case else "local"


def check(opened: Workspace, model: ModelFacts, recipe: Recipe, asked: PlanRequest) -> Judgement:
    """Every check that can be made before the start."""
    try:
        case = cases.resolve(opened, model, recipe, asked.target, asked.goal, asked.load)
    except WhetstoneError as error:
        return Judgement(
            obstacle=error_sentence(error), unknown_target=asked.target not in recipe_target.target_labels(opened)
        )
    found = Judgement(case, estimate.estimate_needs(model, recipe, case.draft), _estimate(opened, case, asked))
    if not case.works:
        return found
    if case.target.kind == "sagemaker":
        return _managed(opened, found, case, asked.aws)
    if case.facts.place == "neuron":
        return _compiled(opened, found, case)
    return _here(opened, found, case, optimize.prepare)


def _here(
    opened: Workspace, found: Judgement, case: Case, prepare: Callable[[Workspace, Case], PreparedOptimize]
) -> Judgement:
    """A job of this machine."""
    if isinstance(case.model, PublishedModel):
        needed = f"To optimize it, its weights are needed. {optimize.import_hint(case.model)}"
        return found._replace(obstacle=needed, lacking=True)
    try:
        prepared = prepare(opened, case)
    except WhetstoneError as error:
        lacking = isinstance(error, EngineMissing) and found.shown is not None
        return found._replace(obstacle=error_sentence(error), lacking=lacking)
    title = optimize.title(prepared.spec.model, case.recipe)
    duration = progress.expected_time(opened, JobKind.OPTIMIZE, title, spec=prepared.spec)
    return found._replace(ready=job_terms.local_submission(opened, prepared), duration=duration)


def _managed(opened: Workspace, found: Judgement, case: Case, given: tuple[str, ...]) -> Judgement:
    """A job of AWS's, with its settings."""
    try:
        shown = sagemaker_jobs.preview(opened, case, given)
    except WhetstoneError as error:
        return found._replace(obstacle=error_sentence(error), lacking=isinstance(error, InvalidOptions))
    why = None if shown.requests else f"{' '.join(shown.notes)} There is nothing to start."
    if why or (why := opened.refusal(Action.SUBMIT)):
        return found._replace(obstacle=why, lacking=True, shown=shown)
    return found._replace(ready=job_terms.sagemaker_submission(opened, case, given, shown), shown=shown)


def _compiled(opened: Workspace, found: Judgement, case: Case) -> Judgement:
    """A compilation of this machine, or what the cache has of it."""
    try:
        shown = neuron_compilation.preview(opened, case)
    except WhetstoneError as error:
        return found._replace(obstacle=error_sentence(error))
    return _here(opened, found._replace(shown=shown), case, partial(neuron_compilation.prepare, known=shown))


def _estimate(opened: Workspace, case: Case, asked: PlanRequest) -> Estimate | None:
    if case.choice is not None:
        return case.choice.winner
    return estimates.estimate_one(opened, case, asked.load, price_per_hour=asked.price) if case.works else None


def show_summary(opened: Workspace, model: ModelFacts, judgement: Judgement) -> None:
    """Valid or not, and what it needs, in the first screenful of any width."""
    case, need = judgement.case, judgement.need
    if case is None or need is None:
        st.error(message(judgement.obstacle or ""), icon=":material/block:")
        if judgement.unknown_target:
            st.button(
                "Plan for this machine", key="build_target-local", on_click=recipe_target.set_target, args=("local",)
            )
        return
    if not case.works:
        _refused(opened, case)
        return
    if not case.recipe.steps and not opened.read_only:
        st.info("No step yet: choose a goal below, or add a step.", icon=":material/add_circle:")
        return
    if judgement.obstacle and not judgement.lacking:
        st.error(message(judgement.obstacle), icon=":material/block:")
        return
    st.success(
        f"Valid for this model {_where(case)}: {', '.join(_parts(model, judgement, need))}.",
        icon=":material/check_circle:",
    )
    if isinstance(judgement.shown, CompilationPreview):
        hit = judgement.shown.lookup.state == "hit"
        st.info(message(judgement.shown.lookup.sentence), icon=":material/inventory_2:" if hit else ":material/memory:")
    if isinstance(model, PublishedModel) and case.target.kind != "sagemaker":
        st.info(message(judgement.obstacle), icon=":material/download:")
        navigation.link("import", f"Import {plain(model.hf_repo)}", ":material/download:", import_folder=model.hf_repo)
    elif judgement.obstacle:
        st.info(message(judgement.obstacle), icon=":material/edit_note:")
    elif judgement.ready and judgement.ready.spec and judgement.ready.spec.deployment and judgement.shown is None:
        st.info(message(optimize.where_text(model, judgement.ready.spec.deployment, case.recipe)))


def _where(case: Case) -> str:
    """Where it was checked for, and what happens there."""
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


def _refused(opened: Workspace, case: Case) -> None:
    """Red, with what would do: where it fits, if memory alone is in the way."""
    reasons = case.verdict.reasons
    if not reasons and case.choice:  # it could be served, but not so that the goal is met
        st.error(message(case.choice.why), icon=":material/block:")
        return
    more = f" And {len(reasons) - 1} more, below." if len(reasons) > 1 else ""
    where = f"On {plain(case.target.name)}: " if case.choice else ""
    st.error(f"{where}{message(reasons[0].message)}{more}", icon=":material/block:")
    if case.verdict.outcome == "does-not-fit" and not case.choice:
        _fits(opened, case)


def _fits(opened: Workspace, case: Case) -> None:
    found = auto_target.fitting_instances(opened, case.model, case.recipe)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("It fits:" if found else "It fits none of the known instances.")
        for each in found:
            price = f", {each.price_per_hour:,.4g} USD an hour" if each.price_per_hour else ""
            label = f"{each.target}{price}"
            st.button(label, key=f"build_fits-{each.target}", on_click=recipe_target.set_target, args=(each.target,))


def _parts(model: ModelFacts, judgement: Judgement, need: JobNeeds) -> list[str]:
    took = judgement.duration
    weights = f"weights {size(estimate.original_bytes(model))} to about {size(need.weights_bytes)}"
    here = (
        []
        if sagemaker_jobs.is_sagemaker(judgement.place)
        else [f"disk {size(need.disk_bytes)}", f"memory {size(need.memory_bytes)}"]
    )
    plan = judgement.case.verdict.plan if judgement.case else None
    served = [f"served by {step.kernel}" for step in (plan.steps if plan else ()) if step.kernel]
    return [weights, *here, duration_range(took.low, took.high) if took else _estimated(judgement), *served]


def _estimated(judgement: Judgement) -> str:
    """The job's duration where no earlier one tells it."""
    took = judgement.estimate.job_seconds if judgement.estimate else None
    return (
        f"estimated {duration_range(*took)}"
        if took and took[1]
        else "duration unknown"
        if took is None
        else "no job needed"
    )


def show_reasons(case: Case | None) -> None:
    """Every reason with its rule and source, what was put right, and the nearest recipe that is valid."""
    if case is None:
        return
    verdict = case.verdict
    for number, reason in enumerate(verdict.reasons):
        if number:  # the first stands over the page
            st.markdown(f":material/block: {message(reason.message)}")
        st.caption(
            f"{'' if number else ':material/block: Why not: '}Rule {plain(reason.rule)}. Source: {plain(reason.source)}"
        )
    if verdict.plan and verdict.plan.notes:
        st.caption("\n".join(f"- {message(note)}" for note in verdict.plan.notes))
    nearest, elsewhere = verdict.suggestion, verdict.suggestion_target
    if nearest is not None:
        on = f" on {plain(elsewhere)}" if elsewhere else ""
        st.markdown(f"Nearest valid recipe: **{plain(steps_line(nearest))}**{on}")
        st.button(
            "Use the nearest valid recipe",
            key="build_nearest",
            icon=":material/build:",
            on_click=_use,
            args=(nearest, elsewhere),
        )


def _use(recipe: Recipe, target: str | None) -> None:
    recipe_form.set_recipe(recipe)
    if target:
        recipe_target.set_target(target)


def show_estimate(opened: Workspace, judgement: Judgement) -> None:
    """What it will need and give; what cannot be told says so."""
    st.markdown("**Estimate**")
    case, found, took = judgement.case, judgement.estimate, judgement.duration
    if case is None or judgement.need is None:
        st.caption("Nothing can be estimated until the recipe can be read for this model and target.")
        return
    if case.choice is not None:
        recipe_estimate.show_choice(case.choice)
    elif found is not None and found.price_per_hour is None:
        recipe_estimate.show_cheapest(
            auto_target.choose_target(opened, case.model, case.recipe, CHEAPEST_TOKEN, found.load)
        )
    if found is None:
        recipe_estimate.show_needs(judgement.need)
        return
    if target_kind(found.target) == "local":
        known = (
            f"{duration_range(took.low, took.high)}, {took.basis}."
            if took
            else "unknown: no job of this kind has succeeded here yet."
        )
        st.caption(f"Duration: {known}")
    recipe_estimate.show(opened, found)


def submit_button(opened: Workspace, judgement: Judgement, lived: JobTerms) -> None:
    """One job for one recipe and target, however often it is clicked; then the way to the job."""
    ready = judgement.ready
    fingerprint = f"{ready.mark} {lived.mark}" if ready else ""
    job_id = idempotency.submitted_job(PURPOSE, fingerprint) if fingerprint else None
    if job_id:
        navigation.link("job", "Open the job", ":material/monitoring:", id=job_id)
        st.button("Run it once more", key="build_again", on_click=idempotency.renew, args=(PURPOSE,))
        return
    clicked = st.button(
        BUTTONS.get(judgement.case.target.kind if judgement.case else "", "Optimize"),
        key="build_optimize",
        type="primary",
        icon=":material/play_arrow:",
        shortcut="Ctrl+Enter",
        disabled=ready is None or lived.obstacle is not None,
        help=None if ready else _why_not(judgement),
    )
    if clicked and ready:  # no callback, which would be given the recipe before the field typed in last was read
        with shell.errors_in_session(REFUSED):
            job = ready.submit(idempotency.submission_key(PURPOSE, fingerprint), lived)
            idempotency.remember_job(PURPOSE, job.id)
            navigation.go("job", id=job.id)
        st.rerun()
    shell.show_session_error(REFUSED)


def _why_not(judgement: Judgement) -> str:
    works = judgement.case is not None and judgement.case.works
    return message(judgement.obstacle) if works else "The recipe must be valid first: the reasons stand beside it."
