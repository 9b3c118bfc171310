"""Presets as rows and text: the three kinds of figures never share a column. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.formatting import document_time, plain, size
from app.summaries import differing_rows
from backend.domain.figures import figure
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import geometric_middle
from backend.domain.planner.preset_titles import FIGURES, PresetTitle
from backend.domain.planner.presets import GOALS, Claim, Goal
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe import step_words
from backend.present import load_words
from backend.present.charts.presets import SIGNS
from backend.present.preset_figures import Measurement
from backend.present.words.measurements import quality_cost
from backend.service.presets.preset_comparison import PresetComparison
from backend.service.presets.presets import PresetView

PUBLISHED = "”"
SIGN = {"published": PUBLISHED, **{str(kind): sign for kind, sign in SIGNS.items()}}
NONE = "–"
PRICE = "≈ Estimated USD per million"
SHARE, BY_LOAD = "≈ Price vs original", "≈ Price by load"
COMPACT = {"Name": 255, "Best for": 205, "Target": 115, PRICE: 95, SHARE: 105, BY_LOAD: 100}
"""Columns for which a screen of 1280 pixels has room, with their widths in pixels."""
KINDS = {
    "estimated": (":material/calculate:", "Estimated", "computed here by formula, a range"),
    "published": (":material/format_quote:", "Published", "third-party, unverified"),
    "measured": (":material/speed:", "Measured", "by an evaluation, on the machine it names"),
}
"""Icon, word and meaning of each kind of figures."""
Ends = tuple[float, float]


def legend() -> str:
    """Return the three kinds in one line."""
    return " · ".join(f"{icon} {SIGN[kind]} **{word}**: {meaning}" for kind, (icon, word, meaning) in KINDS.items())


def basis(views: Sequence[PresetView], load: ExpectedLoad) -> str:
    """Return the load of the estimates in a list, and the origin of their prices, each once."""
    levels = [view.estimated.at(load) for view in views]
    notes = {level.price_note for level in levels if level is not None and level.price_note}
    prices = f" Prices: {'; '.join(sorted(notes))}." if notes else ""
    return f"Estimates are for {load_words.requests(load)}.{load_words.rate_basis(load)}{prices}"


def range_cell(value: Ends | None) -> str:
    """Return `30.1 to 52.4`, one number if both ends are the same, or a dash."""
    return NONE if value is None else " to ".join(dict.fromkeys(map(figure, value)))


def row(view: PresetView, comparison: PresetComparison, load: ExpectedLoad, *, alone: bool = True) -> dict[str, Any]:
    """Return one line of the list at that load. `comparison`: that of all presets of its model. `alone`: the list is of
    one model, whose name is left out."""
    preset, estimate = view.preset, view.estimated.at(load)
    name = comparison.name(preset.id)
    return {
        "Name": name if alone else f"{preset.id.partition('/')[0]}: {name}",
        "Best for": comparison.suits_whom(preset.id),
        "Preset": preset.id,
        "≈ vs original": _share(preset.goal, comparison.row(preset.id)),
        SHARE: _price_share(estimate, comparison.original),
        BY_LOAD: _prices_by_load(view),
        "Recipe": step_words.recipe_name(preset.recipe),
        "Target": load_words.instances(preset.target, estimate),
        "≈ Estimated tokens/s": range_cell(estimate.output_tokens_per_s) if estimate else NONE,
        f"{PUBLISHED} Published": "; ".join(claim.figures for claim in preset.published) or NONE,
        "● Measured": best_level(view.measured[0]) if view.measured else NONE,
        "≈ Estimated ms per token": range_cell(estimate.tpot_ms) if estimate else NONE,
        PRICE: range_cell(estimate.price_per_million_output) if estimate else NONE,
    }


def _price_share(estimate: Estimate | None, original: Estimate | None) -> float | None:
    """Return the middle of the price over the original's; None where one is not known."""
    ends = [each.price_per_million_output if each is not None else None for each in (estimate, original)]
    mine, its = (None if pair is None else geometric_middle(pair) for pair in ends)
    return None if mine is None or not its else mine / its


def _prices_by_load(view: PresetView) -> list[float]:
    """Return the middles of the price at each number of users, ascending."""
    levels = [level for level in view.estimated.levels if level.load.rate is None]
    return [geometric_middle(level.price_per_million_output) for level in levels if level.price_per_million_output]


def original_row(original: Estimate) -> dict[str, Any]:
    """Return the unchanged model in the columns of `row`."""
    return {
        "Name": "The original",
        "Best for": "Comparing",
        "Preset": "–",
        "≈ vs original": "1",
        SHARE: 1.0,
        BY_LOAD: [],
        "Recipe": "no steps",
        "Target": load_words.instances(original.target, original),
        "≈ Estimated tokens/s": range_cell(original.output_tokens_per_s),
        f"{PUBLISHED} Published": NONE,
        "● Measured": NONE,
        "≈ Estimated ms per token": range_cell(original.tpot_ms),
        PRICE: range_cell(original.price_per_million_output),
    }


def _share(goal: Goal, standing: PresetTitle | None) -> str:
    """Return `0.83–0.88, price per token`."""
    if standing is None or standing.ratio is None:
        return NONE
    ratio = "–".join(dict.fromkeys(figure(end, 2) for end in standing.ratio))
    return f"{ratio}, {FIGURES[goal].name}"


def best_level(measured: Measurement) -> str:
    """Return the best sound level."""
    best = measured.best
    return (
        f"{figure(best.output_tokens_per_s)} tokens/s at {best.concurrency}" if best else "no sound level with tokens/s"
    )


ESTIMATES = {
    "ttft_ms": "First token (ms)",
    "tpot_ms": "Per output token (ms)",
    "output_tokens_per_s": "Output tokens/s",
    "price_per_million_output": "USD per million",
}
"""Fields of an estimate and their labels."""


def estimate_rows(view: PresetView) -> list[dict[str, str]]:
    """Return a row per quantity, a column per load."""
    return [
        {
            "≈ Estimated": title,
            **{load_words.demand(level.load): range_cell(getattr(level, name)) for level in view.estimated.levels},
        }
        for name, title in ESTIMATES.items()
    ]


def measured_rows(measured: Measurement) -> list[dict[str, str]]:
    """Return a row per concurrency."""
    return [
        {
            "● Measured": level.load.words + ("" if level.sound else ", not the server's figure"),
            "First token, p50 (ms)": figure(level.ttft_ms_p50),
            "Per output token, p50 (ms)": figure(level.tpot_ms_p50),
            "Output tokens/s": figure(level.output_tokens_per_s),
            "Repeats": str(level.repeats),
        }
        for level in measured.levels
    ]


def claim_lines(claim: Claim, today: str | None) -> list[str]:
    """Return the figure, its sentence, its conditions, what today's prices say, and its source."""
    where = f"[{plain(claim.source)}]({claim.url})" if claim.url else plain(claim.source)
    lines = [
        f"**{plain(claim.metric)} {plain(claim.figures)}**",
        f"“{plain(claim.statement)}”",
        plain(claim.conditions),
    ]
    return [*(part for part in lines if part), *([f":material/calculate: {plain(today)}"] if today else []), where]


def difference_rows(views: Sequence[PresetView], names: Sequence[str], *, only: bool) -> list[dict[str, str]]:
    """Return a row per property, a column per preset. `only` leaves out equal rows."""
    return differing_rows("", names, [_properties(view) for view in views], NONE, only=only)


def _properties(view: PresetView) -> dict[str, str]:
    preset = view.preset
    serving = preset.recipe.serving.model_dump(exclude_defaults=True)
    properties = {
        "Preset": preset.id,
        "Made for": GOALS[preset.goal].title,
        "Model": preset.model,
        "Target": preset.target,
        "Recipe": step_words.steps_line(preset.recipe),
        **{f"Serving, {name}": str(value) for name, value in serving.items()},
        "Origin": view.origin,
    }
    published = {f"{PUBLISHED} {claim.metric}": claim.figures for claim in preset.published}
    return properties | _estimated(view) | published | _measured(view)


def _estimated(view: PresetView) -> dict[str, str]:
    # Say why nothing is estimated.
    if not view.estimated.levels:
        return {"≈ Estimated": f"nothing: {view.estimated.why_not}"}
    # What does not depend on the load.
    first = view.estimated.levels[0]
    hour = first.price_per_hour
    properties = {
        "≈ Price per hour (USD, on demand)": NONE if hour is None else figure(hour, 4),
        "≈ Weights": size(first.weights_bytes),
        "≈ Accelerators used": str(first.tensor_parallel * first.replicas),
        "≈ Longest context (tokens)": NONE if first.max_context is None else f"{first.max_context:,}",
    }
    # Figures at each load.
    for level in view.estimated.levels:
        at = level.load.concurrency if level.load.rate is None else level.load.demand
        properties |= {f"≈ {title} at {at}": range_cell(getattr(level, name)) for name, title in ESTIMATES.items()}
    return properties


def _measured(view: PresetView) -> dict[str, str]:
    if not view.measured:
        return {"● Measured": "not yet"}
    latest = view.measured[0]
    properties = {"● Measured": f"{latest.evaluation}, {document_time(latest.measured_at)}, {latest.hardware}"}
    for level in latest.levels:
        if level.sound:
            properties[f"● Output tokens/s at {level.concurrency}"] = figure(level.output_tokens_per_s)
            properties[f"● Per output token, p50 (ms) at {level.concurrency}"] = figure(level.tpot_ms_p50)
    return properties | {"● Quality": quality_cost(latest.quality)}


def figure_rows(views: Sequence[PresetView]) -> list[dict[str, Any]]:
    """Return rows for export: one per preset, kind and concurrency, or per claim; ranges as least and most."""
    rows: list[dict[str, Any]] = []
    for view in views:
        rows += [*_estimate_figures(view), *_published_figures(view), *_measured_figures(view)]
    return rows


def _head(view: PresetView, kind: str, source: str) -> dict[str, Any]:
    preset = view.preset
    return {
        "preset": preset.id,
        "model": preset.model,
        "goal": preset.goal,
        "target": preset.target,
        "recipe": preset.recipe.name,
        "kind": kind,
        "source": source,
    }


def _estimate_figures(view: PresetView) -> list[dict[str, Any]]:
    rows = []
    for level in view.estimated.levels:
        if level.load.rate is not None:  # the column counts concurrent requests
            continue
        for name in ESTIMATES:
            if (value := getattr(level, name)) is not None:
                head = _head(view, "estimated", f"formula, {level.price_note or 'no price'}")
                rows.append(
                    head | {"concurrency": level.load.concurrency, "metric": name, "least": value[0], "most": value[1]}
                )
    return rows


def _published_figures(view: PresetView) -> list[dict[str, Any]]:
    return [
        _head(view, "published", claim.url or claim.source)
        | {"concurrency": None, "metric": f"{claim.metric} ({claim.unit})", "least": claim.value, "most": claim.value}
        for claim in view.preset.published
    ]


def _measured_figures(view: PresetView) -> list[dict[str, Any]]:
    rows = []
    for measured in view.measured:
        for level in measured.levels:
            fields = level.model_dump(exclude={"concurrency", "load", "repeats", "sound"})
            head = _head(view, "measured" if level.sound else "measured, not the server's figure", measured.provenance)
            rows += [
                head | {"concurrency": level.concurrency, "metric": name, "least": value, "most": value}
                for name, value in fields.items()
                if value is not None
            ]
    return rows
