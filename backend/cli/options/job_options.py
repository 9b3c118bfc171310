"""Options shared by all commands that submit a job: priority, time limits, retries, resources, idempotency key."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import typer

from backend.cli.options.parameter_expansion import Command, expand_parameter, make_option
from backend.domain.errors import InvalidOptions
from backend.domain.jobs import terms
from backend.domain.jobs.terms import Terms
from backend.domain.validation import validate_fields

TIME, SIZE = "TIME", "SIZE"
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "priority": (
        str | None,
        {"help": "high, normal (default) or low. One step is a head start of 8 hours."},
    ),
    "queue_timeout_s": (
        str | None,
        {"metavar": TIME, "help": "Give up if the job has not started after this time: 90s, 30m, 2h."},
    ),
    "start_timeout_s": (
        str | None,
        {"metavar": TIME, "help": "Stop the job if its worker has not reported after this time."},
    ),
    "run_timeout_s": (str | None, {"metavar": TIME, "help": "Stop the job if it runs longer than this."}),
    "retries": (int | None, {"help": "Number of automatic retries after failures that the job did not cause."}),
    "cores": (
        int | None,
        {"help": "Cores for the job. Default: all. Jobs that fit run at the same time."},
    ),
    "memory_bytes": (str | None, {"metavar": SIZE, "help": "Memory for the job, such as 8GB. Default: the estimate."}),
    "idempotency_key": (
        str | None,
        {"metavar": "KEY", "help": "Repeating a request with the same key returns the same job."},
    ),
}
FLAGS = {
    "queue_timeout_s": "--queue-timeout",
    "start_timeout_s": "--start-timeout",
    "run_timeout_s": "--run-timeout",
    "memory_bytes": "--memory",
    "idempotency_key": "--idempotency-key",
}
"""Options whose flag is not their own name."""
COMMON = ("priority", "queue_timeout_s", "start_timeout_s", "run_timeout_s", "retries", "idempotency_key")
READERS: dict[str, Callable[[Any, str], Any]] = {
    "queue_timeout_s": terms.parse_seconds,
    "start_timeout_s": terms.parse_seconds,
    "run_timeout_s": terms.parse_seconds,
    "memory_bytes": terms.parse_size,
}


class JobOptions(NamedTuple):
    """Terms under which a job is queued and run, and its idempotency key."""

    terms: Terms
    key: str | None


def with_job_options(*names: str, timeout: bool = True) -> Callable[[Command], Command]:
    """Replace the parameter `job_options` of a command by the named options and those in COMMON. With `timeout`,
    `--timeout` is another name of `--run-timeout`."""
    return expand_parameter(
        "job_options", [_option(name, timeout) for name in OPTIONS if name in (*COMMON, *names)], _read
    )


def _option(name: str, timeout: bool) -> inspect.Parameter:
    value_type, words = OPTIONS[name]
    also = ("--timeout",) if timeout and name == "run_timeout_s" else ()
    return make_option(name, value_type, typer.Option(FLAGS.get(name, f"--{name}"), *also, **words))


def _read(arguments: dict[str, Any]) -> JobOptions:
    """Raises InvalidOptions."""
    key = arguments.pop("idempotency_key")
    fields = {
        name: READERS[name](value, name) if name in READERS else value
        for name, value in arguments.items()
        if value is not None
    }
    return JobOptions(validate_fields(Terms, fields, InvalidOptions), key)
