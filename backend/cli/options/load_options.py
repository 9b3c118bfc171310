"""Load options shared by `evaluate` and `bench`: one for each field of EvaluateOptions, and how its text is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from backend.cli.options.parameter_expansion import Command, expand_parameter, make_option
from backend.domain.errors import InvalidOptions
from backend.domain.evaluation.document import EvaluateOptions
from backend.present.evaluate_command import flag
from backend.service.evaluations import evaluations

METAVARS = {
    "rate": "R[,R]",
    "ramp": "FROM:TO",
    "trace": "FILE",
    "sweep": "OBJECTIVE",
    "columns": "FIELD=COLUMN",
    "tasks": "TASK",
}


def with_load_options(*, without: Collection[str] = (), **defaults: Any) -> Callable[[Command], Command]:
    """Replace the parameter `chosen` of a command by one option for each field of EvaluateOptions.

    `without` names fields that get no option; `defaults` are default values that differ from the model's. Raises
    InvalidOptions when called.
    """
    fields = [
        _option(name, field, defaults) for name, field in EvaluateOptions.model_fields.items() if name not in without
    ]
    return expand_parameter(
        "chosen", fields, lambda arguments: evaluations.read_options(**(defaults | _read(arguments)))
    )


def _option(name: str, field: FieldInfo, defaults: dict[str, Any]) -> inspect.Parameter:
    value_type = _terminal_type(name, field.annotation)
    default = False if value_type is bool and field.annotation is not bool else defaults.get(name, field.default)
    if name == "workload":  # not given, it is the one that fits the model
        value_type = str | None
    if value_type in (str | None, list[str] | None):
        default = None
    words = (field.description or "").format_map({other: flag(other) for other in EvaluateOptions.model_fields})
    return make_option(
        name, value_type, typer.Option(flag(name), metavar=METAVARS.get(name), help=" ".join(words.split())), default
    )


def _terminal_type(name: str, annotation: Any) -> Any:
    """Return the type that Typer parses for a field of that type."""
    inner = next((member for member in get_args(annotation) if get_origin(member) is tuple), annotation)
    if get_origin(inner) is dict or (get_origin(inner) is tuple and get_args(inner)[0] is str):
        return list[str] | None
    if get_origin(inner) is tuple or name == "trace":
        return str | None
    if get_origin(inner) is Literal:
        return bool if len(get_args(inner)) == 2 else str
    plain = [get_args(member)[0] if get_origin(member) is Annotated else member for member in get_args(annotation)]
    return reduce(or_, plain) if plain else annotation


def _read(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the options that were given, parsed."""
    others = [name for name in ("rate", "ramp", "trace") if arguments[name] is not None]
    if arguments["concurrency"] is not None and others:
        raise InvalidOptions("is for a closed loop: leave it out with {}.", others[0], field="concurrency")
    fields = {
        name: READERS[name](value) if name in READERS else value
        for name, value in arguments.items()
        if value is not None
    }
    if "trace" in fields:
        fields |= {"trace": True, "workload": fields["trace"]}
    return fields


def read_levels(text: str) -> tuple[int, ...]:
    """Raises InvalidOptions."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidOptions(f"is wrong: `{text}` is not a list such as 1,4,16.", field="concurrency") from None


def _read_rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        rates = ()
    if not rates:
        raise InvalidOptions(f"is wrong: `{text}` is not a list of requests per second such as 2,8.", field="rate")
    return rates


def _read_ends(text: str) -> tuple[float, float]:
    try:
        start, end = (float(part) for part in text.split(":"))
    except ValueError:
        raise InvalidOptions(
            f"is wrong: `{text}` is not two rates in requests per second such as 1:20.", field="ramp"
        ) from None
    return start, end


def read_columns(column_pairs: list[str] | None) -> dict[str, str]:
    """`prompt=question` as a mapping. Raises InvalidOptions."""
    pairs = [text.partition("=") for text in column_pairs or ()]
    for field, sign, column in pairs:
        if not (sign and field.strip() and column.strip()):
            raise InvalidOptions(
                f"is wrong: `{field}{sign}{column}` is not FIELD=COLUMN such as prompt=question.", field="columns"
            )
    return {field.strip(): column.strip() for field, _, column in pairs}


READERS: dict[str, Callable[[Any], Any]] = {
    "concurrency": read_levels,
    "rate": _read_rates,
    "ramp": _read_ends,
    "columns": read_columns,
    "sweep": tuple,
    "tasks": tuple,
    "process": lambda poisson: "poisson" if poisson else "constant",
    "endpoint": lambda chat: "chat" if chat else "completions",
}
"""From the words of a terminal; the others are what they are."""
