"""Show which acceptance a draft must reach to pay: on Build beside the speculate step, and on the page of the job."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import charts, idempotency, navigation, shell
from app.formatting import message, plain
from app.session import disabled_unless_allowed
from app.summaries import model_source
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.jobs import PayoffSpec
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import DraftShape, PayoffMap
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.domain.recipe.speculation import SPECULATE
from backend.present.charts.drafts.payoff import payoff_map
from backend.present.words import payoff_map as words
from backend.service import Workspace
from backend.service.evaluations import payoff as measuring
from backend.service.jobs.jobs import JobView
from backend.service.plans import payoff_maps
from backend.service.plans.cases import Case
from backend.service.plans.payoff_maps import TrainedDraft

PURPOSE, REFUSED = "payoff", "payoff_refused"
DEFAULT_MILLIONS = 5.0
"""Million parameters of the draft, if none is known."""


def show_on_build(opened: Workspace, case: Case | None) -> None:
    """Show the payoff map of a recipe that speculates with a second model on this machine; others have none."""
    # Only a draft with a model of its own, served here, has a map.
    step = case.recipe.step("speculate") if case else None
    if case is None or not isinstance(step, Speculate) or not step.drafts or not isinstance(case.model, ModelCard):
        return
    if case.facts.place != "local" or SPECULATE[step.method].once:
        return
    # Show the map if there is one, else offer to measure it.
    measured_map = payoff_maps.find_map(opened, case.model, case.recipe)
    with st.expander("Which acceptance pays here?", icon=":material/query_stats:", expanded=measured_map is not None):
        if measured_map is not None:
            _show_answer(
                measured_map,
                case.facts.serving_draft(case.recipe),
                "build",
                payoff_maps.find_trained_draft(opened, case.model, case.recipe),
            )
        else:
            _offer_measurement(opened, case)


def show_measured(job: JobView) -> None:
    """Show the payoff map that a job measured."""
    measured_map = payoff_maps.map_of_job(job)
    if measured_map is None:
        st.info("This version cannot read the result of this job: measure it again.", icon=":material/info:")
        return
    _show_answer(measured_map, None, "job")
    for warning in measured_map.warnings:
        st.warning(message(warning), icon=":material/warning:")


def show_prediction(opened: Workspace, model: ModelCard, recipe: Recipe) -> None:
    """Show what a trained draft pays at its own acceptance, if there is a payoff map."""
    measured_map, trained = (
        payoff_maps.find_map(opened, model, recipe),
        payoff_maps.find_trained_draft(opened, model, recipe),
    )
    if measured_map is not None and trained is not None:
        st.markdown(_prediction_list(measured_map, trained))
        st.caption(plain(f"Predicted by the payoff map. {words.sureness(measured_map, trained.shape)}"))


def _show_answer(
    measured_map: PayoffMap, known: ModelFacts | None, page: str, trained: TrainedDraft | None = None
) -> None:
    """Show the answer for the draft of the recipe, or for one of a chosen size.

    The prediction at its measured acceptance comes first.
    """
    draft = DraftShape(parameters=known.parameters, layers=known.layers) if known else _choose_shape(measured_map, page)
    answers = words.answers(measured_map, draft)
    if trained is not None:
        st.markdown(_prediction_list(measured_map, trained))
    st.markdown(_bullet_list(f"**{plain(words.subject(measured_map, draft))}**", answers))
    drawn = payoff_map(measured_map, draft, charts.theme(), trained.lengths if trained else ())
    charts.show(drawn, f"{page}-payoff", words=" ".join(answers))
    st.caption(plain(f"{words.sureness(measured_map, draft)} {words.provenance(measured_map)}"))


def _prediction_list(measured_map: PayoffMap, trained: TrainedDraft) -> str:
    return _bullet_list(
        plain(words.measured(trained.lengths)), words.predictions(measured_map, trained.shape, trained.lengths)
    )


def _bullet_list(head: str, rows: Sequence[str]) -> str:
    return "\n".join([head, "", *(f"- {plain(row)}" for row in rows)])


def _choose_shape(measured_map: PayoffMap, page: str) -> DraftShape:
    most = measured_map.parameters / 1e6
    millions = st.number_input(
        "Draft, in million parameters",
        0.1,
        most,
        min(DEFAULT_MILLIONS, most / 2),
        step=1.0,
        key=f"{page}_payoff-size",
        width=240,
        help="Size of the draft. The cost depends on it; the gain depends on how often it is right.",
    )
    return draft_payoff.draft_shape(max(1, round(millions * 1e6)))


def _offer_measurement(opened: Workspace, case: Case) -> None:
    # Say what it takes.
    st.caption(
        "Not measured yet for this model, these settings and this machine. A job of about 15 minutes serves the "
        "model with random drafts and tells which acceptance a draft must reach before you make one."
    )
    # A recipe that changes weights must be made first.
    if any(step.technique in {"prune", "quantize"} for step in case.recipe.steps):
        st.caption(
            "The map needs the optimized weights: make them without this step, then run `whetstone payoff` on the"
            " artifact."
        )
        return
    # Offer the job, then the link to it.
    ready = _prepare(opened, case)
    if ready is not None:
        st.button(
            "Measure it",
            key="build_payoff",
            icon=":material/speed:",
            on_click=_submit,
            args=(opened, ready),
            **disabled_unless_allowed(opened),
        )
        if job_id := idempotency.submitted_job(PURPOSE, ready.revision):
            navigation.link("job", "Open the job", ":material/monitoring:", id=job_id)
    shell.show_session_error(REFUSED)


def _prepare(opened: Workspace, case: Case) -> PayoffSpec | None:
    assert isinstance(case.model, ModelCard)
    try:
        return measuring.prepare(opened, model_source(case.model), serving=case.recipe.serving)
    except WhetstoneError as error:
        st.caption(message(error))
        return None


def _submit(opened: Workspace, spec: PayoffSpec) -> None:
    with shell.errors_in_session(REFUSED):
        job = measuring.submit(opened, spec, submission=idempotency.submission_key(PURPOSE, spec.revision))
        idempotency.remember_job(PURPOSE, job.id)
