"""Options that take a finite number: Python's float also accepts `inf` and `nan`, which no calculation here can use."""

from __future__ import annotations

import math
from typing import Any

import typer


def require_finite(value: float | None) -> float | None:
    """Return the value if it is finite; the callback of number options. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number: give a finite one.")
    return value


def number_option(words: str, least: float = 0.0, most: float | None = None, metavar: str | None = None) -> Any:
    """Return an option that takes a finite number from `least` to `most`; `words` is its help text."""
    return typer.Option(callback=require_finite, min=least, max=most, metavar=metavar, help=words)
