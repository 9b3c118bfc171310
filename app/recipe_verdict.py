"""What the recipe being built will do and need, and the button that submits it."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from app import navigation, once, recipe_form, recipe_options
from app.words import between, message, plain, size
from backend.domain import estimate
from backend.domain.compat import Reason
from backend.domain.errors import WhetstoneError
from backend.domain.estimate import Need
from backend.domain.eta import Range
from backend.domain.jobs import JobKind
from backend.domain.model import ModelCard
from backend.domain.recipe import Recipe
from backend.service import Workspace, optimize, recipes, watching
from backend.service.optimize import Prepared

PURPOSE, REFUSED = "optimize", "build_refused"


class Judgement(NamedTuple):
    """`prepared` is what can be submitted; without it, `reasons` or `obstacle` say why not."""

    prepared: Prepared | None = None
    need: Need | None = None
    duration: Range | None = None
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
    duration = watching.expected(opened, JobKind.OPTIMIZE, optimize.title(card, recipe))
    return Judgement(prepared=prepared, need=need, duration=duration, notes=verdict.plan.notes)


def summary(card: ModelCard, judgement: Judgement) -> None:
    """Valid or not, and what it needs, in the first screenful of any width."""
    need = judgement.need
    if judgement.prepared is None or need is None:
        if judgement.reasons or judgement.obstacle:
            said = message(judgement.obstacle or judgement.reasons[0].message)
            more = f" And {len(judgement.reasons) - 1} more, below." if len(judgement.reasons) > 1 else ""
            st.error(f"{said}{more}", icon=":material/block:")
        return
    took = judgement.duration
    parts = [
        f"weights {size(card.weights_bytes)} to about {size(need.weights_bytes)}",
        f"disk {size(need.disk_bytes)}",
        f"memory {size(need.memory_bytes)}",
        between(took.low, took.high) if took else "duration unknown",
    ]
    st.success(f"Valid for this model on this machine: {', '.join(parts)}.", icon=":material/check_circle:")


def validity(judgement: Judgement) -> None:
    """Every reason with its source, and the nearest recipe that is valid."""
    for reason in judgement.reasons:
        st.markdown(f":material/block: {message(reason.message)}")
        st.caption(f"Why: {plain(reason.source)}")
    for note in judgement.notes:
        st.caption(message(note))
    nearest = judgement.suggestion
    if nearest is not None:
        st.button(
            f"Use the nearest valid recipe: {plain(recipe_options.stack(nearest))}", key="nearest", icon=":material/build:",
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
    took = judgement.duration
    known = f"{between(took.low, took.high)}, {took.basis}." if took else "unknown: no job of this kind has succeeded here yet."
    st.caption(f"Duration: {known}")
    st.caption("Speed, cost and quality: unknown until the result is evaluated against the original.")
    with st.expander("How this is estimated"):
        for name, formula in need.formulas.items():
            st.markdown(f"- {name}: {plain(formula)}")


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
        help=None if judgement.prepared else "The recipe must be valid first: the reasons stand beside it.",
    )  # fmt: skip
    if clicked and judgement.prepared:  # no callback, which would be given the recipe before the field typed in last was read
        _submit(opened, judgement.prepared, fingerprint)
        st.rerun()
    if refused := st.session_state.pop(REFUSED, None):
        st.error(message(refused), icon=":material/error:")


def _submit(opened: Workspace, prepared: Prepared, fingerprint: str) -> None:
    try:
        job = optimize.submit(opened, prepared, submission=once.key(PURPOSE, fingerprint))
    except WhetstoneError as error:
        st.session_state[REFUSED] = str(error)
    else:
        once.remember(PURPOSE, job.id)
        st.toast(f"Queued as {job.id}.")
