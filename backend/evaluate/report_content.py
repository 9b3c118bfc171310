"""What the report says, as plain data for its template: verdicts, charts, tables, facts, downloads. No HTML, no files."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

from backend.domain import charts
from backend.domain.charts_theme import Figure, Theme
from backend.domain.evaluation import Evaluation
from backend.domain.wording import hardware_line
from backend.evaluate.report_facts import facts, moment, variant_facts
from backend.evaluate.report_tables import tables
from backend.evaluate.report_verdicts import cards, headline

THEMES: tuple[Theme, ...] = ("light", "dark")
REPORT_PERCENTILES = ("p50", "p90", "p99")
THROUGHPUTS = ("output_tokens_per_s", "output_tokens_per_s_per_request")
PRICES = ("per_million_input", "per_million_output")


def content(evaluation: Evaluation) -> dict[str, Any]:
    """Everything that the template names."""
    drawn = _charts(evaluation)
    return {
        "title": headline(evaluation),
        "measured_at": moment(evaluation.measured_at),
        "hardware": hardware_line(evaluation.hardware),
        "cards": cards(evaluation),
        "warnings": evaluation.warnings,
        "percentiles": REPORT_PERCENTILES,
        "sections": _sections(drawn),
        "charts": drawn,
        "tables": tables(evaluation),
        "price_given": evaluation.options.price_per_hour is not None,
        "options": evaluation.options,
        "facts": facts(evaluation),
        "variants": [variant_facts(result) for result in evaluation.variants],
        "json_data": _encoded(evaluation.model_dump_json(indent=2)),
        "csv_data": _encoded(charts.csv(evaluation)),
    }


def _encoded(document: str) -> str:
    return base64.b64encode(document.encode()).decode()


def _charts(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Chart name -> title and choices; a choice (a percentile, or `any`) -> words, and a figure for each theme."""
    found = {metric: _latency(evaluation, metric) for metric in charts.LATENCIES}
    for metric in THROUGHPUTS:
        found[metric] = _single(partial(charts.throughput, evaluation, metric))
    for metric in PRICES:
        found[metric] = _single(partial(charts.price, evaluation, metric))
    found["pareto"] = _single(partial(charts.pareto, evaluation))
    found["quality_speed"] = _single(partial(charts.quality_speed, evaluation, None))
    return found


def _latency(evaluation: Evaluation, metric: str) -> dict[str, Any]:
    choices = {percentile: _choice(partial(charts.latency, evaluation, metric, percentile)) for percentile in REPORT_PERCENTILES}
    return {"title": f"{charts.LATENCIES[metric]} (ms)", "choices": choices}


def _single(draw: Callable[[Theme], Figure]) -> dict[str, Any]:
    choice = _choice(draw)
    return {"title": choice["light"]["layout"]["title"]["text"], "choices": {"any": choice}}


def _choice(draw: Callable[[Theme], Figure]) -> dict[str, Any]:
    return {"alt": charts.alt(draw("light")), **{theme: draw(theme) for theme in THEMES}}


def _sections(drawn: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        _section("latency", "Latency", tuple(charts.LATENCIES), drawn),
        _section("throughput", "Throughput", THROUGHPUTS, drawn),
        _section("price", "Price", PRICES, drawn),
        _section("tradeoffs", "Trade-offs", ("pareto", "quality_speed"), drawn),
    ]


def _section(anchor: str, title: str, names: tuple[str, ...], drawn: dict[str, dict[str, Any]]) -> dict[str, Any]:
    plots = [
        {"name": name, "title": drawn[name]["title"], "alt": next(iter(drawn[name]["choices"].values()))["alt"]} for name in names
    ]
    return {"anchor": anchor, "title": title, "plots": plots}
