"""What a search for the highest load found: a row a level, a sentence a variant. Pure; knows nothing of how it is
searched."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.outcome import SloCheck
from backend.domain.figures import code, figure
from backend.domain.limits.objective import parse_objective
from backend.present.words.measurements import quality_cost

METRICS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "client_latency_ms": "client latency"}
VERDICTS = {"kept": "kept it", "missed": "missed it", "undecided": "stayed undecided"}
MEANING = (
    "A load keeps a limit where the whole 95% interval (Wilson) of the share of requests within it reaches the share asked for, "
    "and misses it where the whole interval is below. The knee is where more load begins to buy little throughput."
)
"""How the sentences are to be read. That a search gives no verdict between variants is a warning of the document."""
Checked = Sequence[tuple[Level, SloCheck]]
"""The levels of one search, by rising load."""


def is_search(evaluation: Evaluation) -> bool:
    """Whether its levels were searched for."""
    return bool(evaluation.options.sweep) or any(_checked(result) for result in evaluation.variants)


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """How each level kept the objectives, one row a variant and level; none where nothing was searched."""
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
    """One a variant, in the evaluation's order; none where nothing was searched. Names stand in backticks.

    "`w8a8`: the highest load that keeps TTFT p95 at most 300 ms is 16 streams, at 812 output tokens/s; the knee is at 8
    streams; 17 streams missed it; KL 0.0004."
    """
    return [_sentence(result) for result in evaluation.variants] if is_search(evaluation) else []


def _sentence(result: VariantResult) -> str:
    found = _checked(result)
    said = _found(found) if found else ["no load was measured"]
    return f"{code(result.name)}: {'; '.join([*said, quality_cost(result.quality)])}."


def _found(found: Checked) -> list[str]:
    best = next((place for place, (_, check) in enumerate(found) if check.highest), None)
    knee = next((place for place, (_, check) in enumerate(found) if check.knee), None)
    wanted = goal(found[0][1].objectives)
    if best is None:
        return [f"no load that was tried is shown to keep {wanted}", *_beyond(found)]
    level, _ = found[best]
    speed = f", at {figure(level.output_tokens_per_s)} output tokens/s" if level.output_tokens_per_s else ""
    bend = "no knee among the loads tried" if knee is None else f"the knee is at {found[knee][0].load.words}"
    return [f"the highest load that keeps {wanted} is {level.load.words}{speed}", bend, *_beyond(found[best + 1 :])]


def _beyond(above: Checked) -> list[str]:
    """What stood in the way of a higher load."""
    if not above:
        return ["no higher load was tried, so more may fit"]
    level, check = above[0]
    if level.client_limited:
        return [f"the load generator held {level.load.words} back, so the search ended there"]
    return [f"{level.load.words} {VERDICTS[check.verdict]}"]


def goal(objectives: Sequence[str]) -> str:
    """`ttft_p95<=0.3s` as `TTFT p95 at most 300 ms`."""
    parsed = [parse_objective(text) for text in objectives]
    return " and ".join(
        f"{METRICS[each.metric]} p{each.share * 100:.0f} at most {each.limit_ms:g} ms" for each in parsed
    )
