"""Numbers that a person gives: Python's float takes `inf` and `nan`, with which nothing here can be reckoned."""

from __future__ import annotations

import math
from typing import Any

import typer


def require_finite(value: float | None) -> float | None:
    """The callback of an option that takes a number. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be reckoned with: give a finite one.")
    return value


def number_option(words: str, least: float = 0.0, most: float | None = None, metavar: str | None = None) -> Any:
    """An option that takes a finite number from `least` to `most`; `words` are its help."""
    return typer.Option(callback=require_finite, min=least, max=most, metavar=metavar, help=words)
