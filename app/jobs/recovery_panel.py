"""The recovery of an optimize job on its page: what it gained, and its loss curve, also while it runs."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import charts, shell
from app.formatting import plain, seconds
from backend.domain.figures import figure
from backend.domain.needs import recovery_needs
from backend.domain.recipe import recovery
from backend.domain.recipe.recipe import Recipe
from backend.present.charts.curves.recovery import loss_curve
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView

ROWS = {
    "original": "before pruning",
    "pruned": "after pruning",
    "quantized": "after quantization",
    "recovered": "after recovery",
}


def panel(opened: Workspace, job: JobView, specification: dict[str, Any]) -> None:
    """Draw each recovery of the recipe; nothing if it has none."""
    if "recipe" not in specification:
        return
    recipe = Recipe.model_validate(specification["recipe"])
    recoveries = recovery_needs.find_recoveries(recipe)
    if not recoveries:
        return
    st.subheader("Recovery")
    documents = {name: job.result[name] for name in ("recovery", "quantized_recovery") if job.result.get(name)}
    for name, document in documents.items():
        _show_result(name, document, quantized=recipe.step("quantize") is not None)
    if not documents:
        shell.live("recovery", lambda: _watch(opened, job.id, recoveries), active=not job.ended)


def _show_result(name: str, document: dict[str, Any], *, quantized: bool) -> None:
    # What recovery gained, in a sentence and in figures.
    quality, trained = document["quality"], name == "quantized_recovery"
    before = "quantized" if trained else "pruned"
    st.markdown(f"{plain(recovery.gain_sentence(quality))} {plain(recovery.end_sentence(document, before))}")
    rows = ROWS | ({"original": "of the original"} if trained else {})
    shell.show_figures(
        [
            (f"Perplexity {rows[stage]}", figure(scores["perplexity"], 4), _kl(scores))
            for stage, scores in quality.items()
        ]
    )
    # The loss over its steps, with the saved weights marked.
    drawn = loss_curve(document["curve"], document["objective"], charts.theme(), best_step=document["best_step"])
    charts.show(drawn, f"{name}-loss")
    # What it learned from, and what the errors above refer to.
    data = document["data"]
    errors = "those of quantizing the recovered weights" if quantized else "those of pruning, before recovery"
    errors = "those of quantization, before recovery" if trained else errors
    weights = "" if trained else " with 16-bit weights"
    learned = "that the original wrote" if document["asked"].get("answers") else "of the calibration text"
    st.caption(
        f"Quality measured on held-out text{weights}. It learned from {data['training']['tokens']:,} tokens {learned} "
        f"and validated on {data['validation']['tokens']:,} others, which calibration did not see; it took "
        f"{seconds(document['seconds'])}. The errors of single linears above are {errors}."
    )


def _kl(quality: dict[str, float]) -> str | None:
    return f"mean KL {figure(quality['kl_mean'])}" if quality["kl_mean"] else None


def _watch(opened: Workspace, job_id: str, recoveries: list[recovery.Recovery]) -> str:
    """Draw the curve of the recovery that runs. Return the state of the job."""
    job = jobs.show(opened, job_id)
    points = [point for point in evaluations.read_progress_points(opened, job_id) if "validation" in point]
    # A second recovery begins at step 0 again.
    begun = [number for number, point in enumerate(points) if point["step"] == 0]
    current = recoveries[min(len(begun), len(recoveries)) - 1]
    points = points[begun[-1] :] if begun else points
    if not points and job.ended:
        st.caption("The job ended before recovery started.")
    elif not points:
        st.caption("The loss curve appears here when recovery starts.")
    else:
        charts.show(loss_curve(points, "kl" if current.teacher else "next token", charts.theme()), "recovery-loss")
    return str(job.state)
