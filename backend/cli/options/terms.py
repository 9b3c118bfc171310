"""The options of a job's life that all verbs share which submit one: priority, limits of time, tries, a key; and from words to
values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from backend.domain.errors import InvalidOptions
from backend.domain.jobs import terms
from backend.domain.jobs.terms import Terms
from backend.domain.validation import checked

TIME, SIZE = "TIME", "SIZE"
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "priority": (str | None, {"help": "high, normal (default) or low: a head start of a working day, or the opposite."}),
    "queue_timeout_s": (str | None, {"metavar": TIME, "help": "Give up where it has not started by then: 90s, 30m, 2h."}),
    "start_timeout_s": (str | None, {"metavar": TIME, "help": "End it where its worker has said nothing by then."}),
    "run_timeout_s": (str | None, {"metavar": TIME, "help": "End it where it runs for longer."}),
    "retries": (int | None, {"help": "How often it is tried again by itself after what is no fault of its own."}),
    "cores": (int | None, {"help": "Cores that it takes; all where none are given. Jobs that fit run beside each other."}),
    "memory_bytes": (str | None, {"metavar": SIZE, "help": "Memory that it takes, such as 8GB; by estimate without."}),
    "idempotency_key": (str | None, {"metavar": "KEY", "help": "The same key and request again is the same job."}),
}  # fmt: skip
FLAGS = {
    "queue_timeout_s": "--queue-timeout", "start_timeout_s": "--start-timeout", "run_timeout_s": "--run-timeout",
    "memory_bytes": "--memory", "idempotency_key": "--idempotency-key",
}  # fmt: skip
"""Of options whose flag is not their own name."""
COMMON = ("priority", "queue_timeout_s", "start_timeout_s", "run_timeout_s", "retries", "idempotency_key")
READERS: dict[str, Callable[[Any, str], Any]] = {
    "queue_timeout_s": terms.seconds, "start_timeout_s": terms.seconds, "run_timeout_s": terms.seconds,
    "memory_bytes": terms.size,
}  # fmt: skip
Command = Callable[..., None]


class Life(NamedTuple):
    """What was asked of a job's life."""

    terms: Terms
    key: str | None


def options(*names: str, timeout: bool = True) -> Callable[[Command], Command]:
    """Of a command that takes a `Life` as `life`, one with those options and the common ones in its place. `timeout`: the limit
    of its run is also called that."""
    asked = [name for name in OPTIONS if name in (*COMMON, *names)]

    def decorate(command: Command) -> Command:
        def called(**given: Any) -> None:
            life = _read({name: given.pop(name) for name in asked})
            command(**given, life=life)

        own = inspect.signature(command, eval_str=True)
        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
            for each in ([_option(name, timeout) for name in asked] if parameter.name == "life" else [parameter])
        ]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate


def _option(name: str, timeout: bool) -> inspect.Parameter:
    taken, words = OPTIONS[name]
    also = ("--timeout",) if timeout and name == "run_timeout_s" else ()
    option = typer.Option(FLAGS.get(name, f"--{name}"), *also, **words)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[taken, option])


def _read(given: dict[str, Any]) -> Life:
    """Raises InvalidOptions."""
    key = given.pop("idempotency_key")
    found = {name: READERS[name](value, name) if name in READERS else value for name, value in given.items() if value is not None}
    return Life(checked(Terms, found, InvalidOptions), key)
