"""Summaries of artifacts, evaluations and results, as rows and text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.formatting import document_time, local_time, seconds, size
from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure
from backend.domain.machine import hardware_lines
from backend.domain.model.facts import ModelCard
from backend.present.words import load_search
from backend.present.words import verdicts as wording
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs.artifacts import ArtifactView


def verdicts(evaluation: Evaluation) -> list[str]:
    """Return a sentence per variant at the highest measured load; for a search, what it found."""
    if load_search.is_search(evaluation):
        return load_search.sentences(evaluation)
    latest = {verdict.variant: verdict for verdict in sorted(wording.level_verdicts(evaluation), key=lambda v: v.load)}
    names = [result.name for result in evaluation.variants]
    return [latest[name].text for name in names if name in latest]


def provenance(view: EvaluationView) -> str:
    """Return where, when and with what the figures were measured."""
    document = view.document
    hardware, versions = (
        hardware_lines.hardware_line(document.hardware),
        hardware_lines.versions_line(document.versions),
    )
    return f"Measured {document_time(document.measured_at)} on {hardware}, with {versions}."


def model_source(card: ModelCard) -> str:
    """Return what a person types for this model, also in URLs: the id of a bundled one, else its folder."""
    return card.id if card.origin == "starter" else card.path


def size_change(before: float, after: float) -> str:
    """Return `-47 %`, the change of the size."""
    return f"{after / before - 1:+.0%}" if before else ""


def result_figures(result: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """Return the result of an optimize job as (label, value, comparison); missing values are left out."""
    figures: list[tuple[str, str, str | None]] = []
    # The size of the weights, against the original.
    before, after = result.get("bytes_before"), result.get("bytes_after")
    if before and after:
        figures.append(("Weights", size(after), f"{size_change(before, after)} from {size(before)}"))
    # Quality, as far as it was scored.
    quality = result.get("quality") or {}
    if quality.get("perplexity_after") is not None:
        original = quality.get("perplexity_before")
        figures.append(("Perplexity", figure(quality["perplexity_after"], 4), f"original {figure(original, 4)}"))
    if quality.get("kl_mean") is not None:
        low, high = quality.get("kl_ci95") or (None, None)
        figures.append(
            ("Mean KL divergence", figure(quality["kl_mean"]), f"95% {figure(low)} to {figure(high)}" if low else None)
        )
    if quality.get("same_top") is not None:
        figures.append(
            (
                "Same top token",
                f"{quality['same_top']:.1%}",
                "of held-out positions have the same top token as the original",
            )
        )
    # What the job took.
    if result.get("peak_rss_bytes"):
        figures.append(("Peak memory", size(result["peak_rss_bytes"]), None))
    if result.get("seconds") is not None:
        figures.append(("Run time", seconds(result["seconds"]), None))
    return figures


def differing_rows(
    head: str, names: Sequence[str], all_properties: Sequence[Mapping[str, str]], missing: str, *, only: bool
) -> list[dict[str, str]]:
    """Return a row per property under the heading `head`, a column per name. `only` leaves out equal rows."""
    rows = []
    for name in dict.fromkeys(name for properties in all_properties for name in properties):
        values = [properties.get(name, missing) for properties in all_properties]
        if not only or len(all_properties) == 1 or len(set(values)) > 1:
            rows.append({head: name, **dict(zip(names, values, strict=True))})
    return rows


def artifact_rows(artifacts: Sequence[ArtifactView]) -> list[dict[str, Any]]:
    return [
        {
            "Artifact": view.id,
            "Recipe": view.recipe,
            "Weights": size(view.bytes),
            "Change": size_change(view.manifest.bytes_before, view.manifest.bytes_after),
            "Mean KL": figure((view.manifest.quality or {}).get("kl_mean")),
            "Made": local_time(view.created_at),
        }
        for view in artifacts
    ]
