"""One parameter of a command replaced by options: what Typer then asks for, and what the command is given of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

Command = Callable[..., None]


def make_option(name: str, value_type: Any, typer_option: Any, default: Any = None) -> inspect.Parameter:
    """`value_type`: its type; `typer_option`: the option as Typer makes it."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[value_type, typer_option]
    )


def expand_parameter(
    name: str, options: Sequence[inspect.Parameter], read: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Of a command with that parameter, one with these options in its place; it is given what `read` makes of them."""

    def decorate(command: Command) -> Command:
        def called(**arguments: Any) -> None:
            values = {each.name: arguments.pop(each.name) for each in options}
            command(**arguments, **{name: read(values)})

        own = inspect.signature(command, eval_str=True)
        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
            for each in (options if parameter.name == name else [parameter])
        ]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate
