"""Charts of a draft's training: accepted length and loss against the step, and acceptance by position. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.figures import figure
from backend.domain.recipe.draft_training import LOSS_TITLES, LossName
from backend.present.charts.theme import Figure, Marks, Theme, curve, empty, layout, ringed
from backend.present.words.drafts import temperature_words

LENGTH, LOSS, POSITIONS = "Tokens per step", "Loss during training", "Acceptance by position"
MEASURED = "by vLLM's rule, on the model's answers to prompts that are not used for training"
TRAINING, VALIDATION, BEST = "Training, mean since the previous point", "Validation", "Best"
WAITING = "The first point arrives when the model has answered the prompts."
Point = Mapping[str, Any]


def lengths(points: Sequence[Point], theme: Theme = "light", *, best_step: int | None = None) -> Figure:
    """Chart tokens per decoding step against the training step, a line per temperature; 1 means no gain."""
    if not points:
        return empty(LENGTH, WAITING, theme)
    traces = [
        _line(name, number, points, [_parts_of(point, name)["length"] for point in points], "tokens per step", theme)
        for number, name in enumerate((temperature_words(row["temperature"]) for row in points[0]["acceptance"]), 1)
    ]
    traces += _best_point_rings([point for point in points if point["step"] == best_step], theme)
    most = 1 + len(points[0]["acceptance"][0]["by_position"])
    y = {"label": f"Tokens per step, at most {most}", "range": [1, most]}
    return {"data": traces, "layout": layout(LENGTH, _steps(), y, theme, better="higher", provenance=MEASURED)}


def losses(points: Sequence[Point], loss: LossName, theme: Theme = "light") -> Figure:
    """Chart the training objective's loss against the step, on training and validation answers."""
    if not points:
        return empty(LOSS, WAITING, theme)
    words = LOSS_TITLES[loss]
    learned = [point for point in points if point["training"] is not None]
    traces = [_line(VALIDATION, 1, points, [point["validation"] for point in points], words, theme)]
    traces += [_line(TRAINING, 2, learned, [point["training"] for point in learned], words, theme)] if learned else []
    y = {"label": f"{words[:1].upper()}{words[1:]}", "rangemode": "tozero"}
    return {"data": traces, "layout": layout(LOSS, _steps(), y, theme, provenance=MEASURED)}


def positions(acceptance: Sequence[Point], theme: Theme = "light") -> Figure:
    """Chart the share of drafts whose token at each position was accepted, as vLLM counts it."""
    traces = []
    for number, row in enumerate(acceptance, 1):
        name, rates = temperature_words(row["temperature"]), dict(enumerate(row["by_position"], 1))
        hover_texts = [
            f"<b>{name}</b>, position {place}<br>accepted in {rate:.1%} of drafts<br>{MEASURED}"
            for place, rate in rates.items()
        ]
        traces.append(curve(name, number, theme, Marks(list(rates), list(rates.values()), hover_texts)))
    x, y = (
        {"label": "Position in the draft", "dtick": 1},
        {"label": "Share of drafts", "range": [0, 1], "tickformat": ".0%"},
    )
    return {"data": traces, "layout": layout(POSITIONS, x, y, theme, better="higher", provenance=MEASURED)}


def _steps() -> dict[str, Any]:
    return {"label": "Step", "rangemode": "tozero"}


def _parts_of(point: Point, name: str) -> Point:
    return next(row for row in point["acceptance"] if temperature_words(row["temperature"]) == name)


def _line(
    name: str, index: int, points: Sequence[Point], values: list[float], words: str, theme: Theme
) -> dict[str, Any]:
    x = [int(point["step"]) for point in points]
    hover_texts = [
        f"<b>{name}</b> at step {step}<br>{figure(value)} {words}<br>{MEASURED}"
        for step, value in zip(x, values, strict=True)
    ]
    return curve(name, index, theme, Marks(x, values, hover_texts))


def _best_point_rings(points: Sequence[Point], theme: Theme) -> list[dict[str, Any]]:
    """Return rings around the point whose weights are saved."""
    traces = []
    for point in points[:1]:
        values = [row["length"] for row in point["acceptance"]]
        traces.append(ringed(_line(BEST, 0, [point] * len(values), values, "tokens per step", theme)))
    return traces
