"""The result of a search for the highest load: a row per level, a sentence per variant. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.outcome import SloCheck
from backend.domain.figures import code, figure
from backend.domain.limits.objective import parse_objective
from backend.present.words.measurements import quality_cost

METRICS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "client_latency_ms": "client latency"}
VERDICTS = {"kept": "met it", "missed": "missed it", "undecided": "was inconclusive"}
MEANING = (
    "A load meets an objective if the whole 95% interval (Wilson) of the share of requests within it is at or above "
    "the required share, and misses it if the whole interval is below. At the knee, more load starts to add little "
    "throughput."
)
"""Explains the sentences. The document's warnings say that a search gives no verdict between variants."""
Checked = Sequence[tuple[Level, SloCheck]]
"""The levels of one search, by rising load."""


def is_search(evaluation: Evaluation) -> bool:
    """Tell whether the levels of the evaluation come from a search."""
    return bool(evaluation.options.sweep) or any(_checked(result) for result in evaluation.variants)


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return one row per variant and level: how it met the objectives. Empty without a search."""
    return [
        {
            "Variant": result.name,
            "Load": level.load.words,
            "Mark": ", ".join(word for word, is_it in (("highest", check.highest), ("knee", check.knee)) if is_it),
            "Verdict": check.verdict,
            "Share within": ", ".join(f"{share:.1%}" for share in check.shares),
            "95% interval": ", ".join(f"{low:.1%} to {high:.1%}" for low, high in check.intervals),
            "Objectives": " and ".join(check.objectives),
        }
        for result in evaluation.variants
        for level, check in _checked(result)
    ]


def _checked(result: VariantResult) -> Checked:
    return [(level, level.slo) for level in result.levels if level.slo is not None]


def sentences(evaluation: Evaluation) -> list[str]:
    """Return one sentence per variant, in the evaluation's order; empty without a search.

    "`w8a8`: the highest load with TTFT p95 at most 300 ms is 16 streams, at 812 output tokens/s; the knee is at 8
    streams; 17 streams missed it; KL 0.0004."
    """
    return [_sentence(result) for result in evaluation.variants] if is_search(evaluation) else []


def _sentence(result: VariantResult) -> str:
    checked = _checked(result)
    clauses = _highest_load(checked) if checked else ["no load was measured"]
    return f"{code(result.name)}: {'; '.join([*clauses, quality_cost(result.quality)])}."


def _highest_load(checked: Checked) -> list[str]:
    """Return clauses on the highest load that met the objectives, the knee, and the load above."""
    best = next((index for index, (_, check) in enumerate(checked) if check.highest), None)
    knee = next((index for index, (_, check) in enumerate(checked) if check.knee), None)
    objectives = goal(checked[0][1].objectives)
    if best is None:
        return [f"no load tried is shown to meet {objectives}", *_beyond(checked)]
    level, _ = checked[best]
    speed = f", at {figure(level.output_tokens_per_s)} output tokens/s" if level.output_tokens_per_s else ""
    bend = "no knee among the loads tried" if knee is None else f"the knee is at {checked[knee][0].load.words}"
    return [f"the highest load with {objectives} is {level.load.words}{speed}", bend, *_beyond(checked[best + 1 :])]


def _beyond(above: Checked) -> list[str]:
    """Return why no higher load counts."""
    if not above:
        return ["no higher load was tried, so more may fit"]
    level, check = above[0]
    if level.client_limited:
        return [f"the load generator itself was the limit at {level.load.words}, so the search ended there"]
    return [f"{level.load.words} {VERDICTS[check.verdict]}"]


def goal(objectives: Sequence[str]) -> str:
    """`ttft_p95<=0.3s` as `TTFT p95 at most 300 ms`."""
    parsed = [parse_objective(text) for text in objectives]
    return " and ".join(
        f"{METRICS[objective.limit.metric]} p{objective.share * 100:.0f} at most {objective.limit.most_ms:g} ms"
        for objective in parsed
    )
