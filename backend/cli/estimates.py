"""An estimate and a choice of instances as text: every line a quantity with its unit, unknown where it is unknown."""

from __future__ import annotations

from backend.cli.output import table
from backend.domain.choose import Choice
from backend.domain.estimate import Estimate

LOSERS_SHOWN = 12


def text(found: Estimate) -> str:
    """One line a quantity, then what is unknown, then the formulas."""
    gb = 1e9
    load = f"{found.load.input_tokens} tokens in, {found.load.output_tokens} out, {found.load.concurrency} at once"
    rows = [
        ("target", found.target),
        ("load", load),
        ("weights", f"{found.weights_bytes / gb:,.3g} GB (the original's {found.weights_bytes_original / gb:,.3g} GB)"),
        ("cache a token", f"{found.kv_bytes_per_token / 1024:,.5g} KiB"),
        ("tensor parallel", f"{found.tensor_parallel} (at least {found.min_tensor_parallel or 'unknown'})"),
        ("left for the cache", _ends(found.cache_bytes, 1 / gb, "GB a device")),
        ("tokens in the cache", _ends(found.tokens_in_cache, 1, "tokens")),
        ("longest context", _one(found.max_context, "tokens")),
        ("largest batch", _one(found.max_batch, "requests of this load")),
        ("time to first token", _ends(found.ttft_ms, 1, "ms")),
        ("time per output token", _ends(found.tpot_ms, 1, "ms")),
        ("output", _ends(found.output_tokens_per_s, 1, "tokens/s")),
        (
            "price per hour",
            f"{found.price_per_hour:,.4g} USD, {found.price_note}" if found.price_per_hour is not None else "unknown",
        ),
        ("price per M output", _ends(found.price_per_million_output, 1, "USD")),
        ("optimize job", _ends(found.job_seconds, 1, "s")),
        ("cost of the job", _ends(found.job_cost, 1, "USD")),
        ("disk for the job", f"{found.disk_bytes / gb:,.3g} GB"),
        ("memory for the job", f"{found.memory_bytes / gb:,.3g} GB"),
    ]
    lines = [f"{name:22} {value}" for name, value in rows]
    lines += [f"unknown: {reason}" for reason in found.unknown]
    return "\n".join(
        [*lines, "", "All of this is estimated:", *(f"  {name}: {formula}" for name, formula in found.formulas.items())]
    )


def choice_text(choice: Choice) -> str:
    """The winner's estimate, and the first of the others with why they lost."""
    head = f"{choice.winner.target}. {choice.why}\n\n{text(choice.winner)}" if choice.winner else choice.why
    shown = [(loser.target, loser.price_per_hour, loser.why) for loser in choice.losers[:LOSERS_SHOWN]]
    more = len(choice.losers) - len(shown)
    rest = f"\nand {more} more, with --json." if more > 0 else ""
    return f"{head}\n\nThe others:\n{table(('target', 'USD an hour', 'why it lost'), shown)}{rest}"


def _ends(ends: tuple[float, float] | None, factor: float, unit: str) -> str:
    if ends is None:
        return "unknown"
    least, most = (f"{end * factor:,.4g}" if abs(end * factor) < 10000 else f"{end * factor:,.0f}" for end in ends)
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def _one(value: int | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:,} {unit}"
