"""The report of benchmarks/quantize.py from what was measured: ratios, paired intervals, growth. Measures nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from backend.cli.output import table
from backend.domain.figures import counted
from backend.domain.maths.intervals import mean_ci95
from backend.domain.recipe import quantization_engines
from backend.domain.recipe.capability_table import capability

Row = dict[str, Any]
LOSS = 0.02
"""The quality rule: mean KL not more than this share above the better library's."""


def markdown(rows: Sequence[Row], about: Row, sizes: Sequence[int], methods: Sequence[str]) -> str:
    """Raises ValueError where two engines of a comparison did not see the same tokens."""
    parts = [_head(rows, about)]
    for method in methods:
        for hidden in sizes:
            cell = [row for row in rows if (row["part"], row["method"], row["hidden"]) == ("compare", method, hidden)]
            cell = [row for row in cell if row["threads"] == about["threads"]]
            for steps in sorted({row.get("steps") or 0 for row in cell}):
                same = [row for row in cell if (row.get("steps") or 0) == steps]
                _check_tokens(same)
                parts.append(_comparison(same, method, hidden, steps))
    if about.get("model"):
        return "\n".join(parts)
    parts.append(_growth([row for row in rows if row["threads"] == about["threads"] and not row.get("steps")]))
    return "\n".join(parts)


def _head(rows: Sequence[Row], about: Row) -> str:
    hardware, threads = about["hardware"], counted(about["threads"], "thread")
    versions: dict[str, set[str]] = {}
    for row in rows:
        for name, version in row.get("versions", {}).items():
            versions.setdefault(name, set()).add(version)
    named = ", ".join(f"{name} {' and '.join(sorted(result))}" for name, result in sorted(versions.items()))
    note = f" {about['note']}" if about["note"] else ""
    model, subject, created = about.get("model"), "", "The models were trained\nbriefly (quantize_models.py)."
    if model:
        subject, created = f" of {model}", "The model is\ntaken as it is (--model)."
    return f"""# Quantization{subject}: native, llm-compressor, AutoAWQ

{hardware["cpu"]}, {counted(hardware["cores"], "core")}, {threads} each, {datetime.now(UTC):%Y-%m-%d}.{note}
{named} (where two, the studio's and the compress environment's).
`python -m benchmarks.quantize`: {about["samples"]} x {about["length"]} calibration tokens, the same for all; a fresh
process a run, engines in turns. Seconds are the whole call: load, calibrate, quantize, write; median of the rounds
(least to most). Memory is the peak resident above what the imports take. KL is to the original on held-out text, the
mean over its windows of 512 tokens, in nats a token; intervals are of the difference to the native engine's, paired by
window, 95 %. {created}
"""


def _check_tokens(cell: Sequence[Row]) -> None:
    hashes = {row["calibration"]["sha256"] for row in cell if "calibration" in row}
    if len(hashes) > 1:
        raise ValueError(
            f"the engines of {cell[0]['method']} at hidden {cell[0]['hidden']} saw different calibration tokens"
        )


def _comparison(cell: Sequence[Row], method: str, hidden: int, steps: int = 0) -> str:
    by_engine = {name: [row for row in cell if row["engine"] == name] for name in quantization_engines.ENGINES}
    native = by_engine["native"]
    lines = [_line(name, method, result, native) for name, result in by_engine.items()]
    heads = [
        "engine",
        "seconds",
        "native is",
        "peak MB",
        "of native's",
        "mean KL",
        "minus native's (95 %)",
        "perplexity",
    ]
    layers = cell[0]["layers"]
    longer = f", trained for {steps} steps" if steps else ""
    text = f"## {method}, hidden {hidden}, {layers} layers{longer}\n```\n{table(heads, lines)}\n```\n"
    return text + _verdict(by_engine)


def _line(engine: str, method: str, rows: Sequence[Row], native: Sequence[Row]) -> list[str]:
    row = capability("quantize", method, engine, "cpu")
    if not row.supported:
        return [engine, "not available", "", "", "", "", "", ""]
    timed = _timed(rows)
    if not timed:
        return [engine, _why_none(rows), "", "", "", "", "", ""]
    seconds, ours = [r["seconds"] for r in timed], [r["seconds"] for r in _timed(native)]
    peak, own = _peak(timed), _peak(_timed(native))
    kl, base = _kl(rows), _kl(native)
    return [
        engine,
        f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})",
        "" if engine == "native" or not ours else f"{statistics.median(seconds) / statistics.median(ours):.1f}x faster",
        f"{peak / 1e6:.0f}",
        "" if engine == "native" or not own else f"{peak / own:.1f}x",
        f"{statistics.fmean(kl):.3g}" if kl else "",
        "" if engine == "native" or not (kl and base) else _paired(kl, base),
        f"{_first(rows, 'perplexity'):.2f} (was {_first(rows, 'perplexity_original'):.2f})" if kl else "",
    ]


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if "seconds" in row]


def _why_none(rows: Sequence[Row]) -> str:
    if not rows:
        return "not measured"
    stopped = next((row["stopped_after"] for row in rows if "stopped_after" in row), None)
    return f"stopped after {stopped:.0f} s" if stopped else f"failed: {rows[0]['failed']}"


def _peak(timed: Sequence[Row]) -> float:
    return float(max((row["peak_bytes"] for row in timed), default=0))


def _kl(rows: Sequence[Row]) -> list[float]:
    return next((row["kl"] for row in rows if "kl" in row), [])


def _first(rows: Sequence[Row], name: str) -> float:
    return next(float(row[name]) for row in rows if name in row)


def _paired(kl: Sequence[float], base: Sequence[float]) -> str:
    ends = mean_ci95([a - b for a, b in zip(kl, base, strict=False)])  # over the windows that both were scored on
    return f"{ends[0]:+.2g} to {ends[1]:+.2g}" if ends else ""


def _verdict(by_engine: dict[str, list[Row]]) -> str:
    """The quality rule against the better library: does the paired interval exclude a loss of more than 2 %?"""
    ours, theirs = (
        _kl(by_engine["native"]),
        [result for name, result in by_engine.items() if name != "native" and _kl(result)],
    )
    if not ours or not theirs:
        return "Quality rule: needs the native engine and a library.\n"
    best = min(theirs, key=lambda result: statistics.fmean(_kl(result)))
    pairs = list(zip(ours, _kl(best), strict=False))
    ours, theirs_kl = [a for a, _ in pairs], [b for _, b in pairs]
    allowed = (1 + LOSS) * statistics.fmean(theirs_kl)
    ends = mean_ci95([a - (1 + LOSS) * b for a, b in pairs])
    if ends is None:
        return "Quality rule: one window gives no interval.\n"
    rule = "held" if ends[1] <= 0 else "not held"
    share = statistics.fmean(ours) / statistics.fmean(theirs_kl) - 1
    return (
        f"Quality rule {rule}: native's mean KL is {share:+.1%} against {best[0]['engine']}'s; its distance to what "
        f"is allowed "
        f"({allowed:.7f}) lies in {ends[0]:+.7f} to {ends[1]:+.7f}, {len(pairs)} windows.\n"
    )


def _growth(rows: Sequence[Row]) -> str:
    lines = []
    for engine in quantization_engines.ENGINES:
        own = [row for row in rows if row["engine"] == engine and row["method"] == "awq" and "seconds" in row]
        grown = [row for row in own if row["part"] == "growth"]
        layers, samples = (min((row[name] for row in grown), default=0) for name in ("layers", "samples"))
        most = max((row["samples"] for row in grown), default=0)
        lines += _series(engine, "layers", [row for row in grown if row["samples"] == most])
        lines += _series(engine, "samples", [row for row in grown if row["layers"] == layers] if samples else [])
        lines += _series(engine, "hidden", [row for row in own if row["part"] == "compare"])
    if not lines:
        return "## Growth\nNot measured.\n"
    heads = ["engine", "over", "from", "to", "exponent of time", "seconds", "exponent of memory", "peak MB"]
    return (
        f"## Growth (AWQ)\n```\n{table(heads, lines)}\n```\n"
        "The exponent is the slope of the logarithms by least squares: 1 is linear, 0 flat. Time over `hidden` is per "
        "layer; "
        "`samples` are sequences.\n"
    )


def _series(engine: str, over: str, rows: Sequence[Row]) -> list[list[str]]:
    points = sorted({row[over] for row in rows})
    if len(points) < 2:
        return []
    each = [[row for row in rows if row[over] == point] for point in points]
    share = [result[0]["layers"] if over == "hidden" else 1 for result in each]
    seconds = [statistics.median(r["seconds"] for r in result) / part for result, part in zip(each, share, strict=True)]
    peaks = [_peak(result) for result in each]
    return [
        [
            engine,
            over,
            str(points[0]),
            str(points[-1]),
            f"{slope(points, seconds):.2f}",
            ", ".join(f"{value:.1f}" for value in seconds),
            f"{slope(points, peaks):.2f}",
            ", ".join(f"{value / 1e6:.0f}" for value in peaks),
        ]
    ]


def slope(points: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares slope of log(value) over log(point)."""
    x, y = [math.log(p) for p in points], [math.log(max(v, 1e-9)) for v in values]
    return statistics.linear_regression(x, y).slope
