"""Numbers that a person gives: Python's float takes `inf` and `nan`, with which nothing here can be reckoned."""

from __future__ import annotations

import math

import typer


def finite(value: float | None) -> float | None:
    """The callback of an option that takes a number. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be reckoned with: give a finite one.")
    return value
