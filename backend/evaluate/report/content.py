"""What the report says, as plain data for its template: verdicts, charts, tables, facts, downloads. No HTML, no files."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

from backend.domain.evaluation import energy
from backend.domain.evaluation.document import Evaluation
from backend.domain.imported.result import definition_rows, figure_rows
from backend.domain.machine.lines import hardware_line
from backend.domain.what_if.costs import as_asked
from backend.evaluate.report import more, tables
from backend.evaluate.report.draw import Draw, Plot, one, palette, table
from backend.evaluate.report.facts import facts, moment, variant_facts
from backend.evaluate.report.verdicts import cards, headline
from backend.present.charts import evaluation as charts
from backend.present.report import Extras
from backend.present.tables import tasks
from backend.present.words import costs as cost_words
from backend.present.words import search

REPORT_PERCENTILES = ("p50", "p90", "p99")
THROUGHPUTS = ("output_tokens_per_s", "output_tokens_per_s_per_request")
PRICES = ("per_million_input", "per_million_output")


def content(evaluation: Evaluation, extras: Extras) -> dict[str, Any]:
    """Everything that the template names, at the price of the what-if. The document as JSON stays the stored one."""
    told = _encoded(evaluation.model_dump_json())
    price_basis = cost_words.hour_words(evaluation, extras.what_if)
    evaluation = as_asked(evaluation, extras.what_if)
    shown, at_load, beside = _charts(evaluation), _requests(evaluation, extras), more.imported_plots(evaluation, extras.imported)
    rows = tables.found(evaluation)
    costs, goodput = more.costs(evaluation, extras), more.goodput(evaluation, extras)
    return {
        "title": headline(evaluation),
        "measured_at": moment(evaluation.measured_at),
        "hardware": hardware_line(evaluation.hardware),
        "cards": cards(evaluation),
        "search": search.sentences(evaluation),
        "search_meaning": search.MEANING,
        "warnings": evaluation.warnings,
        "percentiles": REPORT_PERCENTILES,
        "sections": _sections(shown),
        "request_plots": _listed(at_load),
        "loads": [load.words for load in extras.requests.loads] if extras.requests else [],
        "no_requests": more.NO_REQUESTS,
        "answers": more.answers(extras.requests),
        "costs": costs,
        "goodput": goodput,
        "imported": more.imported(extras.imported),
        "imported_plots": _listed(beside),
        "charts": {name: plot.embedded() for name, plot in {**shown, **at_load, **beside}.items()},
        "palette": palette(),
        "tables": {name: table(listed) for name, listed in rows.items()},
        "tasks": tasks.basis(evaluation),
        "energy": energy.basis(evaluation),
        "price_basis": price_basis,
        "price_given": evaluation.options.price_per_hour is not None,
        "options": evaluation.options,
        "facts": facts(evaluation),
        "variants": [variant_facts(result) for result in evaluation.variants],
        "json_data": told,
        "csv_data": _encoded(charts.csv(evaluation)),
        "figures_data": _encoded(_figures(extras, {"costs": costs["rows"], "goodput": goodput["rows"]})),
    }


def _figures(extras: Extras, rows: dict[str, Any]) -> str:
    """What the report shows that is not in the evaluation document: the what-if, changed answers, other tools."""
    answers = extras.requests.changed if extras.requests else {}
    told = {
        "what_if": extras.what_if.model_dump(mode="json"),
        **rows,
        "answers": {name: each.model_dump(mode="json") for name, each in answers.items()},
        "imported": {"figures": figure_rows(extras.imported), "definitions": definition_rows(extras.imported)},
    }
    return json.dumps(told)


def _encoded(document: str) -> str:
    return base64.b64encode(document.encode()).decode()


def _charts(evaluation: Evaluation) -> dict[str, Plot]:
    found = {metric: _latency(evaluation, metric) for metric in charts.LATENCIES}
    for metric in THROUGHPUTS:
        found[metric] = _single(partial(charts.throughput, evaluation, metric))
    for metric in PRICES:
        found[metric] = _single(partial(charts.price, evaluation, metric))
    found["pareto"] = _single(partial(charts.pareto, evaluation))
    found["quality_speed"] = _single(partial(charts.quality_speed, evaluation, None))
    return found


def _requests(evaluation: Evaluation, extras: Extras) -> dict[str, Plot]:
    return more.request_plots(evaluation, extras.requests)


def _latency(evaluation: Evaluation, metric: str) -> Plot:
    choices = {percentile: one(partial(charts.latency, evaluation, metric, percentile)) for percentile in REPORT_PERCENTILES}
    return Plot(f"{charts.LATENCIES[metric]} (ms)", choices)


def _single(draw: Draw) -> Plot:
    choice = one(draw)
    return Plot(choice["figure"]["layout"]["title"]["text"], {"any": choice})


def _sections(drawn: dict[str, Plot]) -> list[dict[str, Any]]:
    return [
        _section("latency", "Latency", tuple(charts.LATENCIES), drawn),
        _section("throughput", "Throughput", THROUGHPUTS, drawn),
        _section("price", "Price", PRICES, drawn),
        _section("tradeoffs", "Trade-offs", ("pareto", "quality_speed"), drawn),
    ]


def _section(anchor: str, title: str, names: tuple[str, ...], drawn: dict[str, Plot]) -> dict[str, Any]:
    return {"anchor": anchor, "title": title, "plots": _listed({name: drawn[name] for name in names})}


def _listed(plots: dict[str, Plot]) -> list[dict[str, str]]:
    """Name, title and words of each, as the page has them before its script runs."""
    return [{"name": name, "title": plot.title, "alt": next(iter(plot.choices.values()))["alt"]} for name, plot in plots.items()]
