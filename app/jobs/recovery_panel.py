"""The recovery of an optimize job on its page: what it gained, and its loss curve, also while it runs."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import charts, shell
from app.formatting import plain, seconds
from backend.domain.figures import figure
from backend.domain.needs.recovery_needs import find_recovery as asked_of
from backend.domain.recipe import recovery
from backend.domain.recipe.recipe import Recipe
from backend.domain.recipe.recovery import Recover
from backend.present.charts.curves.recovery import loss_curve
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView

ROWS = {"original": "before pruning", "pruned": "after pruning", "recovered": "after recovery"}


def panel(opened: Workspace, job: JobView, specification: dict[str, Any]) -> None:
    """Draw the recovery; nothing if the recipe has none."""
    recipe = Recipe.model_validate(specification["recipe"]) if "recipe" in specification else None
    recover = asked_of(recipe) if recipe else None
    if recipe is None or recover is None:
        return
    st.subheader("Recovery")
    document = job.result.get("recovery")
    if document:
        _show_result(document, quantized=recipe.step("quantize") is not None)
    else:
        shell.live("recovery", lambda: _watch(opened, job.id, recover), active=not job.ended)


def _show_result(document: dict[str, Any], *, quantized: bool) -> None:
    # What recovery gained, in a sentence and in figures.
    quality = document["quality"]
    st.markdown(f"{plain(recovery.gain_sentence(quality))} {plain(recovery.end_sentence(document))}")
    shell.show_figures(
        [
            (f"Perplexity {words}", figure(quality[name]["perplexity"], 4), _kl(quality[name]))
            for name, words in ROWS.items()
        ]
    )
    # The loss over its steps, with the saved weights marked.
    drawn = loss_curve(document["curve"], document["objective"], charts.theme(), best_step=document["best_step"])
    charts.show(drawn, "recovery-loss")
    # What it learned from, and what the errors above refer to.
    data = document["data"]
    st.caption(
        f"Quality measured on held-out text with 16-bit weights. It learned from {data['training']['tokens']:,} "
        f"tokens of the calibration text and was stopped by {data['validation']['tokens']:,} others, none of which"
        f" were used for calibration; it took {seconds(document['seconds'])}. The errors of single linears above "
        "are " + ("those of quantizing the recovered weights." if quantized else "those of pruning, before recovery.")
    )


def _kl(quality: dict[str, float]) -> str | None:
    return f"mean KL {figure(quality['kl_mean'])}" if quality["kl_mean"] else None


def _watch(opened: Workspace, job_id: str, recover: Recover) -> str:
    """Draw the curve so far. Return the state of the job."""
    job = jobs.show(opened, job_id)
    points = [point for point in evaluations.read_progress_points(opened, job_id) if "validation" in point]
    if not points and job.ended:
        st.caption("The job ended before recovery started.")
    elif not points:
        st.caption("The loss curve appears here when recovery starts.")
    else:
        charts.show(loss_curve(points, "kl" if recover.teacher else "next token", charts.theme()), "recovery-loss")
    return str(job.state)
