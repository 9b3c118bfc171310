"""A train job on its page: loss and acceptance, what the draft learned from, and whether it pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app import charts, navigation, shell
from app.drafts import payoff_panel
from app.formatting import message, plain, seconds, size
from backend.domain.errors import NotFound
from backend.domain.figures import figure
from backend.domain.jobs.jobs import JobState
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.draft_training import LOSS_TITLES, TITLES, Training
from backend.domain.recipe.recipe import Recipe
from backend.present.charts.curves import training as drawn
from backend.present.words import drafts
from backend.service import Workspace
from backend.service.evaluations import draft_verdicts, evaluations
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.plans import payoff_maps, recipe_files, training

NONE = "The curves appear here when the model has answered the prompts."


def panel(opened: Workspace, job: JobView, specification: dict[str, Any]) -> None:
    """Draw the charts of a job that is no longer queued."""
    if job.state is JobState.SUCCEEDED:
        _show_result(opened, job, ModelCard.model_validate(specification["model"]))
    else:
        loss = specification["options"]["loss"]
        shell.live("training", lambda: _watch(opened, job.id, loss), active=not job.ended)


def repeat_parameters(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the form's parameters for the same training, as its widgets write them."""
    settings = Training.model_validate(options)
    return {
        "train_kind": TITLES[settings.kind],
        "train_loss": LOSS_TITLES[settings.loss],
        "train_minutes": str(settings.minutes),
    }


def draft_recipe(opened: Workspace, job: JobView, model: ModelCard) -> str:
    """Return the recipe that uses the draft, as YAML, with the best number of draft tokens if a payoff map tells."""
    return recipe_files.write_text(payoff_maps.with_best_tokens(opened, model, _plain_recipe(job)))


def _plain_recipe(job: JobView) -> Recipe:
    return training.draft_recipe(str(job.result["artifact"]), job.result["training"])


def _watch(opened: Workspace, job_id: str, loss: str) -> str:
    """Draw the curves so far. Return the state of the job."""
    job = jobs.show(opened, job_id)
    points = [point for point in evaluations.read_progress_points(opened, job_id) if "acceptance" in point]
    if not points:
        st.caption("The job ended before acceptance was measured." if job.ended else NONE)
    else:
        best = max(points, key=lambda point: sum(acceptance["length"] for acceptance in point["acceptance"]))["step"]
        _curves(points, loss, best)
    return str(job.state)


def _curves(points: Sequence[Mapping[str, Any]], loss: str, best: int) -> None:
    left, right = st.columns(2)
    with left:
        charts.show(drawn.lengths(points, charts.theme(), best_step=best), "training-length")
    with right:
        charts.show(drawn.losses(points, loss, charts.theme()), "training-loss")  # type: ignore[arg-type]


def _show_result(opened: Workspace, job: JobView, model: ModelCard) -> None:
    # What the draft reaches at each temperature, its size and time.
    document = job.result["training"]
    cells: list[tuple[str, str, str | None]] = [
        (
            f"Tokens per step, {drafts.temperature_words(acceptance['temperature'])}",
            figure(acceptance["length"], 3),
            f"{acceptance['rate']:.0%} of proposed accepted",
        )
        for acceptance in document["acceptance"]
    ]
    cells += [
        ("Draft", size(job.result["bytes_after"]), f"{document['draft']['parameters'] / 1e6:.1f} M parameters"),
        ("Took", seconds(sum(document["seconds"].values())), None),
    ]
    shell.show_figures(cells)
    # How it was trained, and how it got there.
    st.markdown(plain(drafts.training_words(document)))
    _curves(document["curve"], document["asked"]["loss"], document["best_step"])
    charts.show(drawn.positions(document["acceptance"], charts.theme()), "training-positions")
    _show_payoff(opened, job, model)


def _show_payoff(opened: Workspace, job: JobView, model: ModelCard) -> None:
    """Show whether the draft was deleted, its predicted payoff, and what evaluations measured with it."""
    artifact = str(job.result["artifact"])
    try:
        artifacts.show(opened, artifact)
    except NotFound:
        st.info("The draft of this job has been deleted.", icon=":material/delete:")
        return
    st.caption(f"Draft `{artifact}`. {drafts.RULE}")
    payoff_panel.show_prediction(opened, model, _plain_recipe(job))
    for verdict in draft_verdicts.find_verdicts(opened, artifact):
        (st.success if verdict.pays else st.warning)(message(verdict.sentence), icon=":material/speed:")
        navigation.link("evaluate", "Open the evaluation", ":material/open_in_full:", id=verdict.evaluation)
