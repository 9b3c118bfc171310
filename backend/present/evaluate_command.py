"""Options of an evaluation on the command line: the flag of each field, and the command with the same options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from backend.domain.evaluation.document import EvaluateOptions

FLAGS = {
    "columns": "--column",
    "endpoint": "--chat/--completions",
    "input_output_ratio": "--ratio",
    "process": "--poisson",
    "timeout_s": "--timeout",
    "until_decided": "--until-decided",
    "warmup_requests": "--warmup",
}
"""Flags of fields whose flag is not their own name."""
DEFAULT = EvaluateOptions()


def flag(field: str) -> str:
    """`--max-tokens`; both flags of a switch, as in `--stream/--no-stream`."""
    name = field.replace("_", "-")
    switched = field != "trace" and EvaluateOptions.model_fields[field].annotation in {bool, bool | None}
    return FLAGS.get(field) or (f"--{name}/--no-{name}" if switched else f"--{name}")


def command(sources: Sequence[str], options: EvaluateOptions) -> str:
    """Return one line for a shell, without options that have their default."""
    ignored = {"workload"} if options.trace else set()
    if not options.loads[0].is_closed:
        ignored.add("concurrency")
    changed = [name for name in EvaluateOptions.model_fields if getattr(options, name) != getattr(DEFAULT, name)]
    parts = [part for name in changed if name not in ignored for part in _parts(name, options)]
    return shlex.join(["whetstone", "evaluate", *sources, *parts])


def _parts(name: str, options: EvaluateOptions) -> Iterator[str]:
    # The value decides its form: a flag alone, a flag for each item, or items joined.
    value, (on, _, off) = getattr(options, name), flag(name).partition("/")
    if name == "trace":
        yield from (on, options.workload)
    elif isinstance(value, bool):
        yield on if value else off
    elif name in {"endpoint", "process"}:
        yield on
    elif isinstance(value, dict):
        for field, column in value.items():
            yield from (on, f"{field}={column}")
    elif isinstance(value, tuple) and isinstance(value[0], str):
        for item in value:
            yield from (on, item)
    elif isinstance(value, tuple):
        yield from (on, (":" if name == "ramp" else ",").join(map(_written, value)))
    else:
        yield from (on, _written(value))


def _written(value: Any) -> str:
    """Write a number as short as its value allows."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
