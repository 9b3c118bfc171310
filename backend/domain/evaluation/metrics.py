"""Computes the figures of one level from request records.

Only measured records (not warm-up) count. A latency is over the *good* ones: status ok, with content. Definitions of
`measuring.md`; a latency is in milliseconds, a rate in tokens a second.

- ttft_ms: request written to the first chunk with non-empty content.
- tpot_ms: (last content chunk - first content chunk) / (output tokens - tokens up to the first one), a request. Chunks
that one
  read of the socket brought arrived together: the tokens of all that came with the first one are taken off.
- chunk_gap_ms: between successive reads that brought content, all gaps of all requests.
- Neither is known of an answer that came at once, as from a proxy that buffers (`came_at_once`); no gap where most
chunks came
  together with others.
- In an open loop a latency counts from when the request was due, not from when it was written. Not streamed, only
  client_latency_ms is known.
- client_latency_ms: request written to the last byte of the answer; content_latency_ms: to the last content chunk.
- input_tokens_per_s, output_tokens_per_s: tokens of the ok answers / duration; a slice (a repeat, where no other
  variant was asked in between) lasts from the first measured request written to the last measured answer ended, a level
  the sum of its slices. Where answers came and one with
  content did not tell its tokens, neither is known: a sum over the others would be too low. Where every request failed,
  0.
- steady_output_tokens_per_s: tokens by their time of arrival in the steady window, warm-up answers that reach into it
  included: it opens when every stream has left warm-up and closes when the first stream has nothing more to send.
- empty_responses counts, as the documentation page does, ok answers with zero output tokens or whose tokens could not
be
  counted; tokenizer_failed only the latter (no usage came with the text).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from backend.domain.evaluation.answer_agreement import is_looping
from backend.domain.evaluation.document import LATENCY_METRICS, Level, Price, Summary
from backend.domain.evaluation.prices import Pricing, level_prices
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LevelAudit, RequestRecord
from backend.domain.maths.intervals import percentile, serial_mean_ci95

Records = Sequence[RequestRecord]
FASTEST_TOKEN_S = 0.05e-3
"""Chunks that come faster than this were buffered on the way: 20,000 tokens/s for one user, several times what the
fastest published services stream (about 3,000)."""
LIMITABLE_METRICS = ("ttft_ms", "tpot_ms", "client_latency_ms")
"""Metrics with one figure for each request, so that a limit can be set for them."""


def summarise_level(
    load: Load,
    repeats: Sequence[Records],
    audits: Sequence[Audit],
    *,
    pricing: Pricing | None,
    acceptance: tuple[int, int] | None,
    late_blocks: Sequence[int] = (),
) -> Level:
    """Summarise one level over its repeats, one list of records and one audit each.

    `acceptance` is (accepted, drafted) tokens from the server's counters, None without speculation. `late_blocks` are
    not among the repeats.
    """
    # 1. What a steady state and the concurrency are. A ramp or a trace has no steady state.
    steady = load.mode in {"closed", "rate"}
    concurrency = measured_concurrency(load, audits)
    # 2. The measured records, without warm-up.
    slices = [part for repeat in repeats for part in split_slices(repeat)]
    measured = [[record for record in part if not record.warm] for part in slices]
    everything = [record for part in measured for record in part]
    latencies = {name: summary([_latencies(name, repeat) for repeat in measured]) for name in LATENCY_METRICS}
    duration = sum(_duration(part) for part in measured)
    return Level(
        load=load,
        concurrency=concurrency,
        repeats=len(repeats),
        duration_s=duration,
        **latencies,
        **_rates(everything, duration),
        **_per_request(everything),
        **_counters(everything),
        steady_output_tokens_per_s=_steady(slices) if steady else None,
        price=_price(pricing, concurrency, everything, duration, latencies["tpot_ms"]),
        acceptance_rate=acceptance[0] / acceptance[1] if acceptance and acceptance[1] else None,
        client_limited=any(audit.client_limited for audit in audits),
        audit=_audit(load, repeats, audits, late_blocks),
        blocks=[_block(part, pricing, concurrency, steady=steady) for part in slices],
        requests_per_s=sum(record.ok for record in everything) / duration if duration > 0 else 0.0,
    )


def split_slices(records: Records) -> list[list[RequestRecord]]:
    """Return the records of one run slice by slice, in the order of sending; one slice where it was not cut."""
    slices: dict[int, list[RequestRecord]] = {}
    for record in records:
        slices.setdefault(record.slice, []).append(record)
    return [slices[number] for number in sorted(slices)] or [[]]


def measured_concurrency(load: Load, audits: Sequence[Audit]) -> int:
    """Return the concurrency: as requested in a closed loop, else the mean number under way, rounded, at least 1."""
    if load.is_closed:
        return int(load.value)
    achieved = [audit.achieved_concurrency for audit in audits if audit.achieved_concurrency is not None]
    return max(1, round(sum(achieved) / len(achieved))) if achieved else 1


def good_records(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the records that latencies are computed from: ok and with content."""
    return [record for record in records if record.ok and record.chunk_times]


def tpot_s(record: RequestRecord) -> float | None:
    """Return seconds per output token after the first read with content.

    None where tokens were not counted or all came at once.
    """
    if record.output_tokens is None or not record.chunk_tokens or came_at_once(record):
        return None
    first = bisect_right(record.chunk_times, record.chunk_times[0]) - 1
    tokens = record.output_tokens - record.chunk_tokens[first]
    return (record.chunk_times[-1] - record.chunk_times[0]) / tokens if tokens > 0 else None


def came_at_once(record: RequestRecord) -> bool:
    """Tell whether all content came in one read, or in a burst of reads that no model generates."""
    times = record.chunk_times
    return len(times) < 2 or times[-1] - times[0] < FASTEST_TOKEN_S * (len(times) - 1)


def is_buffered(record: RequestRecord) -> bool:
    """Tell whether several chunks came at once, so that nothing is known of the time between tokens."""
    return record.ok and record.streamed and len(record.chunk_times) > 1 and came_at_once(record)


def _gaps_s(record: RequestRecord) -> list[float]:
    """Return seconds between successive reads with content; empty where more than half of the chunks came together."""
    arrivals = sorted(set(record.chunk_times))
    if came_at_once(record) or 2 * len(arrivals) < len(record.chunk_times):
        return []
    return [later - earlier for earlier, later in pairwise(arrivals)]


def latency_ms(metric: str, record: RequestRecord) -> float | None:
    """Return one request's `ttft_ms`, `tpot_ms`, `client_latency_ms` or `content_latency_ms`; None where it has
    none."""
    return next(iter(_latencies(metric, [record])), None)


def steady_window(records: Records) -> tuple[float, float] | None:
    """Return (start, end) in seconds on the records' clock: every stream has left warm-up, and none is done.

    Without warm-up it opens when every stream has sent its first request. In an open loop: from the first measured
    request due to the last one due. None where it would be empty.
    """
    # 1. An open loop.
    if any(record.clock == "intended" for record in records):
        due = [record.intended for record in records if not record.warm and not record.turn]
        return (min(due), max(due)) if due and max(due) > min(due) else None
    # 2. A closed loop, stream by stream.
    streams: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in records:
        streams[record.stream].append(record)
    if not streams:
        return None
    start = max(_left_warmup(stream) for stream in streams.values())
    end = min(max(record.end for record in stream) for stream in streams.values())
    return (start, end) if end > start else None


def tokens_between(records: Iterable[RequestRecord], start: float, end: float) -> float:
    """Return the output tokens whose chunk arrived in (start, end]."""
    total = 0.0
    for record in records:
        before = bisect_right(record.chunk_times, start)
        until = bisect_right(record.chunk_times, end)
        if record.chunk_tokens and until:
            total += record.chunk_tokens[until - 1] - (record.chunk_tokens[before - 1] if before else 0)
    return total


def _left_warmup(stream: Sequence[RequestRecord]) -> float:
    warm = [record.end for record in stream if record.warm]
    if warm:
        return max(warm)
    return min(record.intended if record.sent is None else record.sent for record in stream)


def _latencies(name: str, records: Records) -> list[float]:
    values_of: dict[str, Callable[[RequestRecord], list[float]]] = {
        "ttft_ms": lambda r: _span(r.start, r.first_content),
        "tpot_ms": lambda r: _span(0.0, tpot_s(r)),
        "chunk_gap_ms": lambda r: [gap * 1000 for gap in _gaps_s(r)],
        "client_latency_ms": lambda r: _span(r.start, r.end),
        "content_latency_ms": lambda r: _span(r.start, r.last_content),
    }
    needs_stream = name != "client_latency_ms"
    values: list[float] = []
    for record in good_records(records):
        if record.streamed or not needs_stream:
            values += values_of[name](record)
    return values


def _span(start: float | None, end: float | None) -> list[float]:
    return [] if start is None or end is None else [(end - start) * 1000]


def _duration(records: Records) -> float:
    if not records:
        return 0.0
    return max(record.end for record in records) - min(r.intended if r.start is None else r.start for r in records)


def _rates(records: Records, duration: float) -> dict[str, float | None]:
    answers = [record for record in records if record.ok]
    tokens = {
        "input_tokens_per_s": _total(answers, [record.prompt_tokens for record in answers]),
        "output_tokens_per_s": _total(answers, [record.output_tokens for record in answers]),
    }
    return {name: total and (total / duration if duration > 0 else 0.0) for name, total in tokens.items()}


def _total(answers: Records, tokens: Sequence[int | None]) -> float | None:
    """Add up tokens over all answers; None where an answer with content, or every answer, came without a count."""
    silent = any(count is None and answer.chunk_times for answer, count in zip(answers, tokens, strict=True))
    counts = [count for count in tokens if count is not None]
    return None if silent or (answers and not counts) else float(sum(counts))


def _per_request(records: Records) -> dict[str, float | None]:
    """Return means per request: tokens, and tokens over its own client latency; tokens per chunk over all chunks."""
    answers = [(r, r.end - r.start) for r in good_records(records) if r.start is not None and r.end > r.start]
    counted = [r for r in good_records(records) if r.chunk_tokens and r.streamed]
    chunks = sum(len(r.chunk_times) for r in counted)
    return {
        "input_tokens_per_s_per_request": _mean(r.prompt_tokens / s for r, s in answers if r.prompt_tokens is not None),
        "output_tokens_per_s_per_request": _mean(
            r.output_tokens / s for r, s in answers if r.output_tokens is not None
        ),
        "input_tokens": _mean(r.prompt_tokens for r in records if r.ok and r.prompt_tokens is not None),
        "output_tokens": _mean(r.output_tokens for r in records if r.ok and r.output_tokens is not None),
        "tokens_per_chunk": sum(r.chunk_tokens[-1] for r in counted) / chunks if chunks else None,
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def _counters(records: Records) -> dict[str, Any]:
    errors = Counter(record.status for record in records if not record.ok)
    uncounted = sum(_uncounted(record) for record in records)
    return {
        "requests": len(records),
        "invocations": len(records),
        "invocation_errors": sum(errors.values()),
        "tokenizer_failed": uncounted,
        "empty_responses": uncounted + sum(_empty(record) for record in records),
        "short_responses": sum(
            record.ok and record.output_tokens == 1 and record.finish_reason != "length" for record in records
        ),
        "errors": dict(sorted(errors.items())),
        "buffered_responses": sum(map(is_buffered, records)),
        "looping_outputs": sum(record.ok and is_looping(record.text) for record in records),
    }


def _uncounted(record: RequestRecord) -> bool:
    return record.ok and bool(record.chunk_times) and record.output_tokens is None


def _empty(record: RequestRecord) -> bool:
    return record.ok and (not record.chunk_times or record.output_tokens == 0)


def _steady(repeats: Sequence[Records]) -> float | None:
    if any(_uncounted(record) for records in repeats for record in records):
        return None
    tokens = length = 0.0
    for records in repeats:
        window = steady_window(records)
        if window is not None:
            tokens += tokens_between(records, *window)
            length += window[1] - window[0]
    return tokens / length if tokens > 0 else None


def prefill_share(records: Records) -> float | None:
    """Return the estimated share of time spent in prefill, 0 to 1: sum of TTFT over sum of content latency."""
    first, whole = sum(_latencies("ttft_ms", records)), sum(_latencies("content_latency_ms", records))
    return first / whole if whole > 0 else None


def _price(
    pricing: Pricing | None, concurrency: int, records: Records, duration: float, tpot: Summary | None
) -> Price | None:
    rates = _rates(records, duration)
    return level_prices(
        pricing,
        concurrency=concurrency,
        input_tokens_per_s=rates["input_tokens_per_s"] or None,
        output_tokens_per_s=rates["output_tokens_per_s"] or None,
        tpot_p50_ms=tpot.p50 if tpot else None,
        prefill_share=prefill_share(records),
    )


def _block(repeat: Records, pricing: Pricing | None, concurrency: int, *, steady: bool) -> dict[str, float]:
    """Return the figures of one slice without those that could not be measured. A latency's plain name is its mean."""
    measured = [record for record in repeat if not record.warm]
    duration = _duration(measured)
    # 1. Latencies.
    figures: dict[str, float | None] = {"duration_s": duration, "requests": float(len(measured))}
    summaries = {name: summary([_latencies(name, measured)]) for name in LATENCY_METRICS}
    for name, latency in summaries.items():
        if latency is not None:
            figures |= {name: latency.mean}
            figures |= {f"{name}_{p}": getattr(latency, p) for p in ("p50", "p90", "p95", "p99")}
    # 2. Rates.
    figures |= {name: rate or None for name, rate in _rates(measured, duration).items()}
    figures |= _per_request(measured) | {"steady_output_tokens_per_s": _steady([repeat]) if steady else None}
    # 3. Prices.
    prices = _price(pricing, concurrency, measured, duration, summaries["tpot_ms"])
    if prices is not None:
        figures |= {f"price_{name}": value for name, value in prices.model_dump().items()}
    return {name: value for name, value in figures.items() if value is not None}


def _audit(load: Load, repeats: Sequence[Records], audits: Sequence[Audit], late_blocks: Sequence[int]) -> LevelAudit:
    measured = [record for repeat in repeats for record in repeat if not record.warm]
    return LevelAudit(
        warmup_requests=sum(record.warm for repeat in repeats for record in repeat),
        warmup_errors=sum(record.warm and not record.ok for repeat in repeats for record in repeat),
        prefill_share=prefill_share(measured),
        token_times=tuple(sorted({record.token_times for record in good_records(measured)})),
        **_merged(audits, max, "loop_lag_ms_p50", "loop_lag_ms_p99", "loop_lag_ms_max", "coalesced_share"),
        **_merged(audits, sum, "wall_s", "cpu_s", "parse_cpu_s", "reconnects"),
        **_merged(audits, min, "achieved_concurrency"),
        **({} if load.is_closed else _open_loop(audits)),
        reasons=tuple(sorted({audit.reason for audit in audits if audit.reason})),
        late_blocks=tuple(late_blocks),
    )


def _open_loop(audits: Sequence[Audit]) -> dict[str, Any]:
    """Merge what shows whether the generator sent on time and the server kept up: the worst of the repeats."""
    return {
        **_merged(audits, sum, "waited"),
        **_merged(audits, min, "offered_per_s", "completed_per_s"),
        **_merged(audits, max, "send_lag_ms_p50", "send_lag_ms_p99"),
    }


def _merged(audits: Sequence[Audit], merge: Callable[[list[Any]], Any], *names: str) -> dict[str, Any]:
    """Merge each of these figures over all audits; None where no audit has it."""
    merged: dict[str, Any] = {}
    for name in names:
        values = [getattr(audit, name) for audit in audits if getattr(audit, name) is not None]
        merged[name] = merge(values) if values else None
    return merged


def summary(repeats: Sequence[Sequence[float]]) -> Summary | None:
    """Return order statistics over all values of all repeats, with an interval over the means of the repeats.

    None without a value.
    """
    ordered = sorted(value for repeat in repeats for value in repeat)
    if not ordered:
        return None
    return Summary(
        mean=fmean(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        ci95=serial_mean_ci95([fmean(repeat) for repeat in repeats if repeat]),
    )
