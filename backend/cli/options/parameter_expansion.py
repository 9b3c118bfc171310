"""One parameter of a command replaced by options: what Typer then asks for, and what the command is given of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

Command = Callable[..., None]


def make_option(name: str, taken: Any, made: Any, default: Any = None) -> inspect.Parameter:
    """`taken`: its type; `made`: the option as Typer makes it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[taken, made])


def expand_parameter(
    name: str, options: Sequence[inspect.Parameter], read: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Of a command with that parameter, one with these options in its place; it is given what `read` makes of them."""

    def decorate(command: Command) -> Command:
        def called(**given: Any) -> None:
            asked = {each.name: given.pop(each.name) for each in options}
            command(**given, **{name: read(asked)})

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
