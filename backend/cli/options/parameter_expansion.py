"""Replaces one parameter of a command by several options: Typer parses the options, the command receives one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

Command = Callable[..., None]


def make_option(name: str, value_type: Any, typer_option: Any, default: Any = None) -> inspect.Parameter:
    """Return a keyword parameter that Typer reads as an option."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[value_type, typer_option]
    )


def expand_parameter(
    name: str, options: Sequence[inspect.Parameter], read: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Return a decorator that replaces the parameter `name` by `options`; the command receives `read(values)`."""

    def decorate(command: Command) -> Command:
        # 1. Read the options into one argument.
        def called(**arguments: Any) -> None:
            values = {option.name: arguments.pop(option.name) for option in options}
            command(**arguments, **{name: read(values)})

        # 2. Show the options in the signature, which the command line is built from.
        own = inspect.signature(command, eval_str=True)
        parameters = [
            option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
            for option in (options if parameter.name == name else [parameter])
        ]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate
