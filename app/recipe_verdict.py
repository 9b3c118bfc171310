"""What the recipe being built will do and need, and the button that submits it."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from app import navigation, once, recipe_form
from app.words import size
from backend.domain import estimate
from backend.domain.compat import Reason
from backend.domain.errors import WhetstoneError
from backend.domain.estimate import Need
from backend.domain.model import ModelCard
from backend.domain.recipe import Recipe
from backend.service import Workspace, optimize, recipes
from backend.service.optimize import Prepared

PURPOSE, REFUSED = "optimize", "build_refused"


class Judgement(NamedTuple):
    """`prepared` is what can be submitted; without it, `reasons` or `obstacle` say why not."""

    prepared: Prepared | None = None
    need: Need | None = None
    reasons: tuple[Reason, ...] = ()
    suggestion: Recipe | None = None
    notes: tuple[str, ...] = ()
    obstacle: str | None = None


def judge(opened: Workspace, card: ModelCard, source: str, recipe: Recipe) -> Judgement:
    """Every check that can be made before the start."""
    try:
        verdict, draft = recipes.check(opened, card, recipe)
    except WhetstoneError as error:
        return Judgement(obstacle=str(error))
    need = estimate.need(card, recipe, draft)
    if verdict.plan is None:
        return Judgement(need=need, reasons=verdict.reasons, suggestion=verdict.suggestion)
    try:
        prepared = optimize.prepare(opened, source, recipe)
    except WhetstoneError as error:
        return Judgement(need=need, notes=verdict.plan.notes, obstacle=str(error))
    return Judgement(prepared=prepared, need=need, notes=verdict.plan.notes)


def validity(judgement: Judgement) -> None:
    """Valid or not, and every reason with its source."""
    if judgement.prepared is not None:
        st.success("This recipe is valid for this model on this machine.", icon=":material/check_circle:")
    if judgement.obstacle:
        st.error(judgement.obstacle, icon=":material/block:")
    for reason in judgement.reasons:
        st.error(reason.message, icon=":material/block:")
        st.caption(f"Why: {reason.source}")
    for note in judgement.notes:
        st.caption(note)
    nearest = judgement.suggestion
    if nearest is not None:
        steps = " + ".join(step.technique for step in nearest.steps) or "no steps, the original"
        st.button(
            f"Use the nearest valid recipe: {steps}", key="nearest", icon=":material/build:",
            on_click=recipe_form.put, args=(nearest,),
        )  # fmt: skip


def estimates(card: ModelCard, judgement: Judgement) -> None:
    """Disk and memory with their formulas; what cannot be told says so."""
    st.markdown("**Estimate**")
    if judgement.need is None:
        st.caption("Nothing can be estimated until the recipe can be read for this model.")
        return
    need = judgement.need
    with st.container(horizontal=True):
        st.metric("Weights after", size(need.weights_bytes), help=f"Estimated: {need.formulas['weights']}")
        st.metric("Disk", size(need.disk_bytes), help=f"Estimated: {need.formulas['disk']}")
        st.metric("Memory", size(need.memory_bytes), help=f"Estimated: {need.formulas['memory']}")
    st.caption(f"The original's weights take {size(card.weights_bytes)} (read from its files).")
    st.caption("Duration: unknown before the job runs; its page shows what is left while it runs.")
    st.caption("Speed, cost and quality: unknown until the result is evaluated against the original.")
    with st.expander("How this is estimated"):
        for name, formula in need.formulas.items():
            st.markdown(f"- {name}: {formula}")


def submit_button(opened: Workspace, card: ModelCard, recipe: Recipe | None, judgement: Judgement) -> None:
    """One job for one recipe, however often it is clicked; then the way to the job."""
    fingerprint = f"{card.path} {card.revision} {recipe.hash} {recipe.name}" if recipe else ""
    job_id = once.made(PURPOSE, fingerprint) if recipe else None
    if job_id:
        navigation.link("job", "Open the job", ":material/monitoring:", id=job_id)
        st.button("Run it once more", key="again", on_click=once.renew, args=(PURPOSE,))
        return
    clicked = st.button(
        "Optimize", key="optimize", type="primary", icon=":material/play_arrow:", shortcut="Ctrl+Enter",
        disabled=judgement.prepared is None,
        help=None if judgement.prepared else "The recipe must be valid first: the reasons stand below.",
    )  # fmt: skip
    if clicked and judgement.prepared:  # no callback, which would be given the recipe before the field typed in last was read
        _submit(opened, judgement.prepared, fingerprint)
        st.rerun()
    if refused := st.session_state.pop(REFUSED, None):
        st.error(refused, icon=":material/error:")


def _submit(opened: Workspace, prepared: Prepared, fingerprint: str) -> None:
    try:
        job = optimize.submit(opened, prepared, submission=once.key(PURPOSE, fingerprint))
    except WhetstoneError as error:
        st.session_state[REFUSED] = str(error)
    else:
        once.remember(PURPOSE, job.id)
        st.toast(f"Queued as {job.id}.")
