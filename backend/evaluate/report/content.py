"""Collects the report's contents as plain data for its template: verdicts, charts, tables, facts, downloads.

A figure is embedded once, in the colours of the light theme; the script turns them into those of the dark one by
`palette`, which halves the file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from backend.domain.evaluation import energy
from backend.domain.evaluation.comparison import HEADLINE
from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.soundness import SHARED_PROCESSORS
from backend.domain.figures import counted, figure, listed
from backend.domain.imported.imported_result import NO_TEST, TITLES, ImportedResult, definition_rows, figure_rows
from backend.domain.limits.chart_selection import choose_foremost
from backend.domain.load.load import Load
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.maths.intervals import wilson
from backend.domain.what_if.costs import repriced
from backend.domain.what_if.slice_means import with_slice_means
from backend.evaluate.report import tables
from backend.evaluate.report.facts import facts, moment, variant_facts
from backend.evaluate.report.tables import table_data
from backend.present import evaluation_top
from backend.present.charts import evaluation as charts
from backend.present.charts import imported_results as charts_imported
from backend.present.charts import requests, tradeoffs
from backend.present.charts.alt_text import alt
from backend.present.charts.markers import WHISKERS_TEXT, places, provenance
from backend.present.charts.theme import COLOURS, Figure, Theme, pale, upright
from backend.present.report_content import LATENCIES, Changed, Extras, Requests, Run, Within
from backend.present.speculation import words as speculation
from backend.present.tables import tasks
from backend.present.tables.evaluation import Row, csv
from backend.present.variant_tiles import tile_look
from backend.present.words import costs as cost_words
from backend.present.words import headline, load_search, repeat_counts
from backend.present.words.text_differences import differences
from backend.present.words.verdicts import GridRow, grid_rows, level_verdicts

REPORT_PERCENTILES = ("p50", "p90", "p99")
THROUGHPUTS = ("output_tokens_per_s", "output_tokens_per_s_per_request")
PRICES = ("per_million_input", "per_million_output")
FIRST = ("pareto", "first_quality")
"""Names of the charts below the tiles."""
NO_REQUESTS = (
    "Single requests were not kept with this report: the studio's page of the evaluation has them where they are."
)
Draw = Callable[[Theme], Figure]


class Plot(NamedTuple):
    """`choices`: what a reader can choose (a percentile, a load, or `any` alone) -> words and figure."""

    title: str
    choices: dict[str, dict[str, Any]]


PROVENANCE = "\x1f"
"""Marks the end of a hover text where the script adds the provenance of the whole chart."""


def content(evaluation: Evaluation, extras: Extras) -> dict[str, Any]:
    """Return everything that the template names, at the price of the what-if; the JSON is the stored document."""
    # Take the document as stored, then price it as the what-if says.
    document = _encoded(evaluation.model_dump_json())
    price_basis = cost_words.hour_words(evaluation, extras.what_if)
    evaluation = repriced(with_slice_means(evaluation), extras.what_if)
    # Draw what several parts of the page show.
    shown, at_load = _charts(evaluation), request_plots(evaluation, extras.requests)
    imported_charts = imported_plots(evaluation, extras.imported)
    rows = tables.rows_by_table(evaluation)
    costed, within = costs(evaluation, extras), goodput(evaluation, extras)
    # Name everything as the template does.
    return {
        "title": title(evaluation),
        "measured_at": moment(evaluation.measured_at),
        "hardware": hardware_line(evaluation.hardware),
        "top": top(evaluation),
        "first_plots": _listed({name: plot for name, plot in shown.items() if name in FIRST}),
        "verdicts": None if load_search.is_search(evaluation) else verdicts(evaluation),
        "search_meaning": load_search.MEANING,
        "lossless_meaning": speculation.MEANING,
        "shared_processors": SHARED_PROCESSORS if SHARED_PROCESSORS in evaluation.warnings else "",
        "whiskers": WHISKERS_TEXT,
        "tests": repeat_counts.describe_tests(evaluation),
        "percentiles": REPORT_PERCENTILES,
        "sections": _sections(shown),
        "request_plots": _listed(at_load),
        "loads": [load.words for load in extras.requests.loads] if extras.requests else [],
        "no_requests": NO_REQUESTS,
        "answers": answers(extras.requests),
        "costs": costed,
        "goodput": within,
        "imported": imported(extras.imported),
        "imported_plots": _listed(imported_charts),
        "charts": {name: plot._asdict() for name, plot in {**shown, **at_load, **imported_charts}.items()},
        "palette": palette(),
        "tables": {name: table_data(table_rows) for name, table_rows in rows.items()},
        "tasks": tasks.basis(evaluation),
        "guessing": tasks.guessing_sentences(evaluation),
        "energy": energy.energy_basis(evaluation),
        "price_basis": price_basis,
        "price_given": evaluation.has_price,
        "options": evaluation.options,
        "facts": facts(evaluation),
        "looks": places(evaluation),
        "variants": [variant_facts(evaluation, result) for result in evaluation.variants],
        "json_data": document,
        "csv_data": _encoded(csv(evaluation)),
        "figures_data": _encoded(_figures(extras, {"costs": costed["rows"], "goodput": within["rows"]})),
    }


def _figures(extras: Extras, rows: dict[str, Any]) -> str:
    """Return what the report shows beyond the evaluation document: the what-if, changed answers, other tools."""
    answers = extras.requests.changed if extras.requests else {}
    document = {
        "what_if": extras.what_if.model_dump(mode="json"),
        **rows,
        "answers": {name: each.model_dump(mode="json") for name, each in answers.items()},
        "imported": {"figures": figure_rows(extras.imported), "definitions": definition_rows(extras.imported)},
    }
    return json.dumps(document)


def _encoded(document: str) -> str:
    return base64.b64encode(document.encode()).decode()


def _charts(evaluation: Evaluation) -> dict[str, Plot]:
    plots = {metric: _latency(evaluation, metric) for metric in charts.LATENCIES}
    for metric in THROUGHPUTS:
        plots[metric] = _single(partial(charts.throughput, evaluation, metric))
    for metric in PRICES:
        plots[metric] = _single(partial(charts.price, evaluation, metric))
    plots |= _first_charts(evaluation)
    plots["quality_speed"] = _single(partial(tradeoffs.quality_speed, evaluation, None))
    return plots


def _first_charts(evaluation: Evaluation) -> dict[str, Plot]:
    """Return the charts that the page of the evaluation shows first, with the same variants in colour."""
    draw = partial(evaluation_top.first_charts, evaluation, choose_foremost(evaluation))
    front, quality = FIRST
    plots = {front: _single(lambda theme: draw(theme).front)}
    if draw("light").quality is not None:
        plots[quality] = _single(lambda theme: draw(theme).quality or {})
    return plots


def _latency(evaluation: Evaluation, metric: str) -> Plot:
    choices = {
        percentile: draw_choice(partial(charts.latency, evaluation, metric, percentile))
        for percentile in REPORT_PERCENTILES
    }
    return Plot(f"{charts.LATENCIES[metric]} (ms)", choices)


def _single(draw: Draw) -> Plot:
    choice = draw_choice(draw)
    return Plot(choice["figure"]["layout"]["title"]["text"], {"any": choice})


def _sections(drawn: dict[str, Plot]) -> list[dict[str, Any]]:
    sections: list[tuple[str, str, Iterable[str]]] = [
        ("latency", "Latency", charts.LATENCIES),
        ("throughput", "Throughput", THROUGHPUTS),
        ("price", "Price", PRICES),
        ("tradeoffs", "Trade-offs", ("quality_speed",)),
    ]
    return [
        {"anchor": anchor, "title": title, "plots": _listed({name: drawn[name] for name in names})}
        for anchor, title, names in sections
    ]


def _listed(plots: dict[str, Plot]) -> list[dict[str, str]]:
    """Return name, title and description of each plot, as the page has them before its script runs."""
    return [
        {"name": name, "title": plot.title, "alt": next(iter(plot.choices.values()))["alt"]}
        for name, plot in plots.items()
    ]


def costs(evaluation: Evaluation, extras: Extras) -> dict[str, Any]:
    """The what-if: a row a variant, and the sentences that it rests on."""
    rows = cost_words.rows(evaluation, extras.what_if)
    return {"rows": rows, "table": table_data(rows), "basis": cost_words.basis(evaluation, extras.what_if)}


def goodput(evaluation: Evaluation, extras: Extras) -> dict[str, Any]:
    """Requests a second of which every latency was within the limits, a row a variant and level; empty without
    limits."""
    durations = {(r.name, level.load): level.duration_s for r in evaluation.variants for level in r.levels}
    rows = [_goodput(count, durations[count.variant, count.load]) for count in extras.goodput if count.of]
    limits = extras.what_if.request_limits
    words = [
        f"{name.lower()} at most {figure(limits[metric])} ms" for metric, name in LATENCIES.items() if metric in limits
    ]
    return {"rows": rows, "table": table_data(rows), "limits": " and ".join(words)}


def _goodput(within: Within, duration_s: float) -> Row:
    low, high = wilson(within.within, within.of)
    return {
        "Variant": within.variant,
        "Concurrency": within.load.cell,
        "Goodput (requests/s)": within.within / duration_s if duration_s > 0 else None,
        "All requests/s": within.of / duration_s if duration_s > 0 else None,
        "Within the limits": f"{within.within / within.of:.1%}",
        "95% interval": f"{low:.1%} to {high:.1%}",
    }


def request_plots(evaluation: Evaluation, requests_shown: Requests | None) -> dict[str, Plot]:
    """Distributions with a choice of load, then a run on the clock a variant."""
    if requests_shown is None:
        return {}
    # The distribution of each latency, at each load.
    where, decimals = provenance(evaluation), places(evaluation)
    plots: dict[str, Plot] = {}
    for metric, title in LATENCIES.items():
        choices = {
            load.words: draw_choice(
                partial(requests.sampled, metric, load.words, load.spreads.get(metric, {}), decimals, where)
            )
            for load in requests_shown.loads
        }
        plots[f"spread_{metric}"] = Plot(f"{title} of every request (ms)", choices)
    # One run of each variant.
    for number, (name, run) in enumerate(requests_shown.runs.items()):
        draw: Draw = partial(_timeline, name, requests_shown.at, run, where)
        plots[f"run_{number}"] = Plot(f"{name} at {requests_shown.at}: {_shown(run)}", {"any": draw_choice(draw)})
    return plots


def _shown(run: Run) -> str:
    """Say which of the run's requests are drawn."""
    drawn = len(run.records)
    if drawn == run.requests:
        return f"all {drawn} requests of the first repeat"
    of_streams = f" on {run.shown_streams} of {run.streams} streams" if run.shown_streams < run.streams else ""
    return f"a sample, {drawn} of {run.requests:,} requests of the first repeat{of_streams}"


def _timeline(name: str, at: str, run: Run, where: str, theme: Theme) -> Figure:
    """The steady window is that of all requests, also where some are drawn."""
    drawn = requests.timeline(name, at, run.records, where, theme)
    sent = [record.sent for record in run.records if record.sent is not None]
    if not drawn["data"] or run.window is None or len(run.records) == run.requests:
        return drawn
    shapes = [upright(moment - min(sent), COLOURS[theme].muted, width=1) for moment in run.window]
    return {**drawn, "layout": {**drawn["layout"], "shapes": shapes}}


def answers(requests_shown: Requests | None) -> list[dict[str, Any]]:
    """A variant, how many of its answers have the baseline's words, and the most different ones side by side."""
    return [_changed(name, each) for name, each in requests_shown.changed.items()] if requests_shown else []


def _changed(name: str, changed: Changed) -> dict[str, Any]:
    pairs = []
    for pair in changed.most:
        if pair.token_f1 < 1:
            sides = differences(pair.baseline, pair.variant)
            where = {"prompt": pair.prompt, "repeat": pair.block + 1, "f1": figure(pair.token_f1)}
            pairs.append({**where, "sides": [[(piece.text, piece.differs) for piece in side] for side in sides]})
    return {"name": name, "said": f"{changed.same} of {changed.compared} answers have the same words.", "pairs": pairs}


def imported(results: Sequence[ImportedResult]) -> dict[str, Any] | None:
    """Provenance, figures and definitions of other tools' results; None without any."""
    if not results:
        return None
    return {
        "lines": [
            f"{result.name}: {result.provenance}, {result.measured_at or 'moment not recorded'}." for result in results
        ],
        "notes": [
            NO_TEST,
            "What a file does not hold is left empty.",
            *(note for result in results for note in result.notes),
        ],
        "figures": table_data(figure_rows(results), "Result"),
        "definitions": table_data(definition_rows(results), "Tool"),
    }


def imported_plots(evaluation: Evaluation, results: Sequence[ImportedResult]) -> dict[str, Plot]:
    """Ours and theirs on one chart a metric."""
    if not results:
        return {}
    return {
        f"imported_{metric}": Plot(
            TITLES[metric] + (" p50 (ms)" if metric.endswith("_ms") else ", all streams"),
            {"any": draw_choice(partial(charts_imported.imported_comparison, evaluation, results, metric))},
        )
        for metric in HEADLINE
    }


def draw_choice(draw: Draw) -> dict[str, Any]:
    """Draw one choice of a chart."""
    light = draw("light")
    return {"alt": alt(light), "figure": _short(light)}


def _short(drawn: Figure) -> Figure:
    """Remove the provenance from every mark, since the layout has it once."""
    end = f"<br>{drawn['layout'].get('meta', {}).get('provenance', '')}"
    return {**drawn, "data": [_shortened(trace, end) for trace in drawn["data"]]}


def _shortened(trace: dict[str, Any], end: str) -> dict[str, Any]:
    hover = trace.get("hovertext")
    if not isinstance(hover, list):
        return trace
    texts = [text.removesuffix(end) + (PROVENANCE if text.endswith(end) else "") for text in hover]
    return {**trace, "hovertext": texts}


def palette() -> dict[str, str]:
    """Colour of the light theme -> that of the dark one, for every colour that a chart uses."""
    light, dark = ((*colours[:-1], *colours.series) for colours in (COLOURS["light"], COLOURS["dark"]))
    pairs = dict(zip(light, dark, strict=True))
    return pairs | {pale(a): pale(b) for a, b in pairs.items()}


def title(evaluation: Evaluation) -> str:
    """The page's title: who was measured against whom."""
    names = [result.name for result in evaluation.variants]
    if len(names) < 2:
        return f"{names[0]}, measured" if names else "An empty evaluation"
    return f"{listed(names[1:])} against {names[0]}"


def top(evaluation: Evaluation) -> dict[str, Any]:
    """Return what the page of the evaluation shows first: verdict, tiles and caveats, as the template draws them."""
    shown = evaluation_top.read_top(evaluation)
    tiles = [{**tile._asdict(), **dict(zip(("colour", "arrow"), tile_look(tile), strict=True))} for tile in shown.tiles]
    return {**shown._asdict(), "tiles": tiles, "caveats_title": counted(len(shown.caveats), "caveat")}


def verdicts(evaluation: Evaluation) -> dict[str, Any]:
    """Return the verdicts in full: a sentence for the whole, a table of variants and loads, and every latency."""
    rows = [
        {"Variant": row.name, **{load.words: _cell(row, load) for load in evaluation.loads}, "Quality": row.quality}
        for row in grid_rows(evaluation)
    ]
    return {
        "whole": headline.headline_sentence(evaluation),
        "table": table_data(rows),
        "sentences": [verdict.text for verdict in level_verdicts(evaluation)],
    }


def _cell(row: GridRow, load: Load) -> str:
    cell = row.cells.get(load)
    return cell.text if cell is not None else "–"
