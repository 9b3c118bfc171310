"""A search as the command that begins the same one."""

from __future__ import annotations

import shlex

from backend.domain.tuning.request import TuneRequest

DEFAULTS = TuneRequest(model="")


def command(request: TuneRequest) -> str:
    """Return `whetstone tune MODEL --...` with every option that is not the default."""
    limits, space = request.limits, request.space
    options: list[tuple[str, object, object]] = [
        ("--goal", request.goal, DEFAULTS.goal),
        ("--concurrency", ",".join(map(str, request.streams)), ",".join(map(str, DEFAULTS.streams))),
        ("--ttft", limits.ttft_ms, None),
        ("--tpot", limits.tpot_ms, None),
        ("--percentile", limits.percentile, DEFAULTS.limits.percentile),
        ("--max-kl", request.max_kl, None),
        ("--max-kl-p99", request.max_kl_p99, None),
        ("--answer-length", request.max_length_change, None),
        ("--task-limit", request.task_limit, None),
        ("--max-task-loss", request.max_task_loss, DEFAULTS.max_task_loss),
        ("--budget", request.budget_min, DEFAULTS.budget_min),
        ("--disk", request.disk_gb, DEFAULTS.disk_gb),
        ("--engines", ",".join(space.engines), ""),
        ("--weights", ",".join(space.weights), ""),
        ("--workload", request.workload, None),
        ("--max-tokens", request.max_tokens, DEFAULTS.max_tokens),
        ("--price-per-hour", request.price_per_hour, None),
        ("--seed", request.seed, DEFAULTS.seed),
    ]
    words = ["whetstone", "tune", request.model]
    for flag, value, default in options:
        if value != default:
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    for name, values in space.settings.items():
        words += ["--setting", f"{name}={','.join(values)}"]
    for task in request.tasks:
        words += ["--task", task]
    for source in request.against:
        words += ["--against", source]
    return shlex.join(words)
