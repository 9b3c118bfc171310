"""An evaluation that was put together on the page as the command that asks the same."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from backend.domain.evaluation.document import EvaluateOptions

NUMBERS = {
    "requests": "--requests", "seconds": "--seconds", "repeats": "--repeats", "max_tokens": "--max-tokens",
    "temperature": "--temperature", "connections": "--connections", "warmup_requests": "--warmup",
    "warmup_seconds": "--warmup-seconds", "timeout_s": "--timeout", "seed": "--seed", "price_per_hour": "--price-per-hour",
    "discount": "--discount", "input_output_ratio": "--ratio", "interleave": "--interleave", "bearer_env": "--bearer-env",
    "sweep_to": "--sweep-to", "task_limit": "--task-limit",
}  # fmt: skip
SWITCHES = {
    "process": ("poisson", "--poisson"), "endpoint": ("chat", "--chat"), "stream": (False, "--no-stream"),
    "quality": (False, "--no-quality"),
}  # fmt: skip
DEFAULT = EvaluateOptions()


def command(sources: Sequence[str], options: EvaluateOptions) -> str:
    """One line for a shell; what is as the command has it by default is left out."""
    parts = ["whetstone", "evaluate", *sources, *_workload(options), *_load(options)]
    for name, flag in NUMBERS.items():
        value = getattr(options, name)
        if value != getattr(DEFAULT, name):
            parts += [flag, _written(value)]
    parts += [part for task in options.tasks for part in ("--tasks", task)]
    parts += [flag for name, (value, flag) in SWITCHES.items() if getattr(options, name) == value]
    return shlex.join(parts)


def _workload(options: EvaluateOptions) -> list[str]:
    columns = [part for field, column in options.columns.items() for part in ("--column", f"{field}={column}")]
    if options.trace:
        return ["--trace", options.workload, *columns]
    return columns if options.workload == DEFAULT.workload else ["--workload", options.workload, *columns]


def _load(options: EvaluateOptions) -> list[str]:
    objectives = [part for objective in options.sweep for part in ("--sweep", objective)]
    if options.ramp is not None:
        return ["--ramp", ":".join(map(_written, options.ramp))]
    if options.rate:
        return ["--rate", ",".join(map(_written, options.rate)), *objectives]
    if options.trace or options.concurrency == DEFAULT.concurrency:
        return objectives
    return ["--concurrency", ",".join(map(str, options.concurrency)), *objectives]


def _written(value: Any) -> str:
    """A number as short as it can be without becoming another."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
