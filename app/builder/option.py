"""One option of a recipe as a form shows it. It knows no technique."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

OptionKind = Literal["choice", "whole", "share", "number", "bits", "rate", "text", "flag"]


class Option(NamedTuple):
    """One setting: its field, label, help and possible values. None among the choices is the default."""

    name: str
    label: str
    help: str
    kind: OptionKind
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None


TRI: tuple[Any, ...] = (None, True, False)
"""Default, yes, no."""
