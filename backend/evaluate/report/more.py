"""What the report says beside the document: costs, goodput, single requests, changed answers, other tools. No HTML, no files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure
from backend.domain.imported.result import NO_TEST, TITLES, ImportedResult, definition_rows, figure_rows
from backend.domain.maths.intervals import wilson
from backend.evaluate.report.draw import Draw, Plot, one, table
from backend.present.charts import imported as charts_imported
from backend.present.charts import requests, spread
from backend.present.charts.parts import provenance
from backend.present.charts.theme import COLOURS, Figure, Theme
from backend.present.report import Changed, Extras, Requests, Run, Within
from backend.present.tables.evaluation import Row
from backend.present.words import costs as cost_words
from backend.present.words.differences import differences

NO_REQUESTS = "Single requests were not kept with this report: the studio's page of the evaluation has them where they are."


def costs(evaluation: Evaluation, extras: Extras) -> dict[str, Any]:
    """The what-if: a row a variant, and the sentences that it rests on."""
    rows = cost_words.rows(evaluation, extras.what_if)
    return {"rows": rows, "table": table(rows), "basis": cost_words.basis(evaluation, extras.what_if)}


def goodput(evaluation: Evaluation, extras: Extras) -> dict[str, Any]:
    """Requests a second of which every latency was within the limits, a row a variant and level; empty without limits."""
    durations = {(r.name, level.load): level.duration_s for r in evaluation.variants for level in r.levels}
    rows = [_goodput(each, durations[each.variant, each.load]) for each in extras.goodput if each.of]
    named = (("ttft_ms", "time to first token"), ("tpot_ms", "inter-token latency"), ("client_latency_ms", "client latency"))
    limits = extras.what_if.request_limits
    words = [f"{name} at most {figure(limits[metric])} ms" for metric, name in named if metric in limits]
    return {"rows": rows, "table": table(rows), "limits": " and ".join(words)}


def _goodput(found: Within, duration_s: float) -> Row:
    low, high = wilson(found.within, found.of)
    return {
        "Variant": found.variant,
        "Concurrency": found.load.cell,
        "Goodput (requests/s)": found.within / duration_s if duration_s > 0 else None,
        "All requests/s": found.of / duration_s if duration_s > 0 else None,
        "Within the limits": f"{found.within / found.of:.1%}",
        "95% interval": f"{low:.1%} to {high:.1%}",
    }


def request_plots(evaluation: Evaluation, found: Requests | None) -> dict[str, Plot]:
    """Distributions with a choice of load, then a run on the clock a variant."""
    if found is None:
        return {}
    where = provenance(evaluation)
    plots: dict[str, Plot] = {}
    for metric, title in spread.TITLES.items():
        choices = {
            load.words: one(partial(spread.distribution, metric, load.words, load.spreads.get(metric, {}), where))
            for load in found.loads
        }
        plots[f"spread_{metric}"] = Plot(f"{title} of every request (ms)", choices)
    for number, (name, run) in enumerate(found.runs.items()):
        draw: Draw = partial(_timeline, name, found.at, run, where)
        plots[f"run_{number}"] = Plot(f"{name} at {found.at}: {_shown(run)}", {"any": one(draw)})
    return plots


def _shown(run: Run) -> str:
    """Which of its requests are drawn."""
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
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": COLOURS[theme].muted, "dash": "dot", "width": 1}}
    shapes = [{**line, "x0": moment - min(sent), "x1": moment - min(sent)} for moment in run.window]
    return {**drawn, "layout": {**drawn["layout"], "shapes": shapes}}


def answers(found: Requests | None) -> list[dict[str, Any]]:
    """A variant, how many of its answers have the baseline's words, and the most different ones side by side."""
    return [_changed(name, each) for name, each in found.changed.items()] if found else []


def _changed(name: str, found: Changed) -> dict[str, Any]:
    pairs = []
    for pair in found.most:
        if pair.token_f1 < 1:
            sides = differences(pair.baseline, pair.variant)
            where = {"prompt": pair.prompt, "repeat": pair.block + 1, "f1": figure(pair.token_f1)}
            pairs.append({**where, "sides": [[(piece.text, piece.differs) for piece in side] for side in sides]})
    return {"name": name, "said": f"{found.same} of {found.compared} answers have the same words.", "pairs": pairs}


def imported(results: Sequence[ImportedResult]) -> dict[str, Any] | None:
    """Provenance, figures and definitions of other tools' results; None without any."""
    if not results:
        return None
    return {
        "lines": [f"{each.name}: {each.provenance}, {each.measured_at or 'moment not recorded'}." for each in results],
        "notes": [NO_TEST, "What a file does not hold is left empty.", *(note for each in results for note in each.notes)],
        "figures": table(figure_rows(results), "Result"),
        "definitions": table(definition_rows(results), "Tool"),
    }


def imported_plots(evaluation: Evaluation, results: Sequence[ImportedResult]) -> dict[str, Plot]:
    """Ours and theirs on one chart a metric."""
    if not results:
        return {}
    return {
        f"imported_{metric}": Plot(
            TITLES[metric] + (" p50 (ms)" if metric.endswith("_ms") else ", all streams"),
            {"any": one(partial(_imported, evaluation, results, metric))},
        )
        for metric in charts_imported.SHOWN
    }


def _imported(evaluation: Evaluation, results: Sequence[ImportedResult], metric: str, theme: Theme) -> Figure:
    return charts_imported.beside(evaluation, results, metric, theme)
