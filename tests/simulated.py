"""Evaluations made up by simulation, with a known truth: for tests of statistics, charts and reports. Not measurements.

A level's metrics are lognormal around a true value, one draw a block.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import (
    EvaluateOptions,
    Evaluation,
    Level,
    Price,
    Quality,
    Summary,
    Variant,
    VariantResult,
)
from backend.domain.load.load import Load
from backend.domain.load.records import Audit
from backend.domain.recipe.recipe import Serving
from backend.domain.workload.workload import WorkloadSummary

LEVELS = (1, 4, 16)
INPUT_TOKENS, OUTPUT_TOKENS = 96.0, 64.0


def truth(concurrency: int, speed: float) -> dict[str, float]:
    """The true figures of a server that is `speed` times the simulated original and saturates slowly."""
    tpot = 20.0 * (1 + 0.06 * (concurrency - 1)) / speed
    ttft = 60.0 * concurrency**0.5 / speed**0.5
    return {
        "ttft_ms": ttft,
        "tpot_ms": tpot,
        "client_latency_ms": ttft + tpot * (OUTPUT_TOKENS - 1),
        "output_tokens_per_s": concurrency * OUTPUT_TOKENS * 1000 / (ttft + tpot * (OUTPUT_TOKENS - 1)),
    }


def blocks(true: Mapping[str, float], repeats: int, noise: float, rng: random.Random) -> list[dict[str, float]]:
    """One mapping a repeat, mean and median of each latency drawn together; `noise` is the log's standard deviation."""
    results = []
    for _ in range(repeats):
        drawn = {name: value * math.exp(rng.gauss(0, noise)) for name, value in true.items()}
        medians = {f"{name}_p50": value for name, value in drawn.items() if name.endswith("_ms")}
        results.append({**drawn, **medians})
    return results


def audit(*, late: bool, limited: bool | None = None) -> Audit:
    """The audit of one run; `limited` by the load generator where it was late, unless said otherwise."""
    return Audit(
        wall_s=1.0,
        cpu_s=0.1,
        parse_cpu_s=0.1,
        loop_lag_ms_p50=0.1,
        loop_lag_ms_p99=40.0 if late else 0.1,
        loop_lag_ms_max=40.0,
        coalesced_share=0.0,
        achieved_concurrency=1.0,
        steady_start=None,
        steady_end=None,
        usage="continuous",
        client_limited=late if limited is None else limited,
        late=late,
        reason="late" if late else None,
    )


def level(
    concurrency: int, speed: float = 1.0, repeats: int = 5, noise: float = 0.02, seed: int = 0, **changes: Any
) -> Level:
    rng = random.Random(f"{seed}/{concurrency}/{speed}")
    drawn = blocks(truth(concurrency, speed), repeats, noise, rng)
    for block in drawn:
        rate = block["output_tokens_per_s"]
        block["input_tokens_per_s"] = rate * INPUT_TOKENS / OUTPUT_TOKENS
        block["output_tokens_per_s_per_request"] = rate / concurrency
    mean = {name: fmean(block[name] for block in drawn) for name in drawn[0]}
    throughput = mean["output_tokens_per_s"]
    requests = 8 * concurrency * repeats
    fields: dict[str, Any] = {
        "load": Load("closed", concurrency),
        "concurrency": concurrency,
        "repeats": repeats,
        "requests": requests,
        "duration_s": requests * OUTPUT_TOKENS / throughput,
        "chunk_gap_ms": summary(mean["tpot_ms"]),
        "tokens_per_chunk": 1.0,
        "content_latency_ms": summary(mean["client_latency_ms"] - 1),
        "input_tokens_per_s": throughput * INPUT_TOKENS / OUTPUT_TOKENS,
        "output_tokens_per_s": throughput,
        "steady_output_tokens_per_s": throughput * 1.04,
        "input_tokens_per_s_per_request": throughput * INPUT_TOKENS / OUTPUT_TOKENS / concurrency,
        "output_tokens_per_s_per_request": throughput / concurrency,
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "invocations": requests,
        "invocation_errors": 0,
        "tokenizer_failed": 0,
        "empty_responses": 0,
        "audit": {
            "warmup_requests": 2 * concurrency * repeats,
            "warmup_errors": 0,
            "prefill_share": 0.1,
            "token_times": ["continuous"],
            "wall_s": 20.0,
            "cpu_s": 0.9,
            "loop_lag_ms_p99": 0.4,
            "coalesced_share": 0.01,
            "reasons": ["the loop lagged 41 ms"] if changes.get("client_limited") else [],
            "achieved_concurrency": concurrency * 0.98,
        },
        "blocks": drawn,
        **{name: summary(mean[name]) for name in ("ttft_ms", "tpot_ms", "client_latency_ms")},
    }
    return Level(**{**fields, **changes})


def uncounted(created: Level, answers: int | None = None) -> Level:
    """The level where so many answers, all by default, came without a token count."""
    silent = created.invocations if answers is None else answers
    tokens: dict[str, Any] = {"output_tokens_per_s": None, "steady_output_tokens_per_s": None, "price": None}
    if silent == created.invocations:
        of_answers = (
            "input_tokens_per_s_per_request",
            "output_tokens_per_s_per_request",
            "input_tokens",
            "output_tokens",
        )
        tokens |= dict.fromkeys(("input_tokens_per_s", "tpot_ms", "tokens_per_chunk", *of_answers), None)
    remaining = [
        {k: v for k, v in b.items() if silent < created.invocations or not k.startswith(("output", "tpot"))}
        for b in created.blocks
    ]
    return created.model_copy(
        update={**tokens, "tokenizer_failed": silent, "empty_responses": silent, "blocks": remaining}
    )


def summary(value: float) -> Summary:
    scale = {"mean": 1.03, "p50": 1.0, "p90": 1.25, "p95": 1.4, "p99": 1.8}
    return Summary(**{name: value * factor for name, factor in scale.items()}, ci95=(value * 0.98, value * 1.06))


def price(created: Level, per_hour: float) -> Level:
    """The level with prices after the definitions of the evaluation document (a split of the hour by token counts)."""
    hour_in, hour_out = created.input_tokens_per_s * 3600 / 1e6, created.output_tokens_per_s * 3600 / 1e6
    tpot = created.tpot_ms.p50 if created.tpot_ms else math.nan
    paid = Price(
        per_million_input=per_hour / hour_in,
        per_million_output=per_hour / hour_out,
        per_million_total=per_hour / (hour_in + hour_out),
        blended=None,
        blended_sagemaker=per_hour / (created.concurrency / tpot * 1000 * 3600 / 1e6) / 4,
    )
    return created.model_copy(update={"price": paid})


def result(name: str, levels: Sequence[Level], quality: Quality | None = None) -> VariantResult:
    variant = Variant(name=name, source=name, kind="model", serving=Serving(), bytes_on_disk=22_000_000)
    return VariantResult(
        name=name, variant=variant, levels=list(levels), quality=quality, ready_seconds=24.0, peak_rss_bytes=2 * 2**30
    )


def quality(kl: float) -> Quality:
    return Quality(
        perplexity=61.88 + 50 * kl,
        perplexity_original=61.88,
        kl_mean=kl,
        kl_ci95=(kl * 0.9, kl * 1.1),
        greedy_match=1 - 20 * kl,
        first_divergence_share=kl,
        scored="dequantized" if kl else "original",
    )


def aa_results(seed: int, variants: int = 2, noise: float = 0.05) -> list[VariantResult]:
    """Variants that are all the same, at three levels over five blocks."""
    created = []
    for index in range(variants):
        levels = [level(c, noise=noise, seed=seed * 1000 + index) for c in LEVELS]
        created.append(result(f"same-{index}", levels))
    return created


def evaluation(
    names: Sequence[str] = ("original", "w8a8", "draft", "w8a8-draft"),
    speeds: Sequence[float] = (1.0, 1.31, 2.4, 3.1),
    repeats: int = 5,
    per_hour: float | None = 1.2,
    with_quality: bool = True,
    levels: Sequence[int] = LEVELS,
    noise: float = 0.02,
) -> Evaluation:
    """A whole document with every field filled, its figures drawn from `truth`."""
    kls = (0.0, 0.0004, 0.0, 0.0004)
    results = []
    for index, (name, speed) in enumerate(zip(names, speeds, strict=True)):
        measured_levels = [level(c, speed, repeats, noise, seed=index) for c in levels]
        if "draft" in name:
            measured_levels = [
                row.model_copy(update={"acceptance_rate": 0.61, "tokens_per_chunk": 2.9, "looping_outputs": 1})
                for row in measured_levels
            ]
        priced = [price(row, per_hour) for row in measured_levels] if per_hour is not None else measured_levels
        results.append(result(name, priced, quality(kls[index % 4]) if with_quality else None))
    return Evaluation(
        schema=1,
        variants=results,
        comparison=compare(results),
        workload=WorkloadSummary(
            name="simulated", sha256="0" * 64, prompts=32, prompt_characters_p50=400, prompt_characters_max=900
        ),
        hardware={"cpu": "Simulated CPU", "cores": 2, "memory_bytes": 16 * 2**30},
        versions={"whetstone": "0.1.0", "vllm": "0.0-simulated", "torch": "0.0-simulated"},
        options=EvaluateOptions(concurrency=tuple(levels), repeats=repeats, price_per_hour=per_hour),
        interleave="resident",
        measured_at="2026-01-02T03:04:05+00:00",
        warnings=["These figures are simulated: they show the report, not a model."],
    )
