"""One option of a recipe as a form shows it. Knows no technique."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

OptionKind = Literal["choice", "whole", "share", "number", "bits", "rate", "text", "flag"]


class Option(NamedTuple):
    """One setting: its field, its words, and what it takes. A None among the choices stands for the default."""

    name: str
    label: str
    help: str
    kind: OptionKind
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None


TRI: tuple[Any, ...] = (None, True, False)
"""The default, yes, no."""
