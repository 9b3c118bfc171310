"""What came of things, in rows and words: artifacts, evaluations and their verdicts. Pure."""

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
    """One sentence a variant, at the highest load that was measured: where serving is decided. Of a search, what it
    found."""
    if load_search.is_search(evaluation):
        return load_search.sentences(evaluation)
    latest = {verdict.variant: verdict for verdict in sorted(wording.level_verdicts(evaluation), key=lambda v: v.load)}
    names = [result.name for result in evaluation.variants]
    return [latest[name].text for name in names if name in latest]


def provenance(view: EvaluationView) -> str:
    """Where, when and with what the figures were measured."""
    document = view.document
    hardware, versions = (
        hardware_lines.hardware_line(document.hardware),
        hardware_lines.versions_line(document.versions),
    )
    return f"Measured {document_time(document.measured_at)} on {hardware}, with {versions}."


def model_source(card: ModelCard) -> str:
    """What a person writes for this model, and what stands in URLs: the id of a bundled one, else its folder."""
    return card.id if card.origin == "starter" else card.path


def size_change(before: float, after: float) -> str:
    """`-47 %`, the sign of what happened to the size."""
    return f"{after / before - 1:+.0%}" if before else ""


def result_figures(result: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """An optimize job's result as (label, value, against what); what was not measured is left out."""
    figures: list[tuple[str, str, str | None]] = []
    before, after = result.get("bytes_before"), result.get("bytes_after")
    if before and after:
        figures.append(("Weights", size(after), f"{size_change(before, after)} from {size(before)}"))
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
            ("Same top token", f"{quality['same_top']:.1%}", "of held-out positions have the original's first choice")
        )
    if result.get("peak_rss_bytes"):
        figures.append(("Peak memory", size(result["peak_rss_bytes"]), None))
    if result.get("seconds") is not None:
        figures.append(("Run time", seconds(result["seconds"]), None))
    return figures


def differing_rows(
    head: str, names: Sequence[str], all_properties: Sequence[Mapping[str, str]], missing: str, *, only: bool
) -> list[dict[str, str]]:
    """A row a property, headed `head`, a column each of what is called `names`; `only` leaves out what is the same in
    all."""
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
