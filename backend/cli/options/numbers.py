"""Options that take a number: a finite one, since no calculation here can use Python's `inf` and `nan`, or a port."""

from __future__ import annotations

import math
from typing import Any

import typer

PORTS = range(1, 65_536)


def require_finite(value: float | None) -> float | None:
    """Return the value if it is finite; the callback of number options. Raises typer.BadParameter."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number: give a finite one.")
    return value


def number_option(words: str, least: float = 0.0, most: float | None = None, metavar: str | None = None) -> Any:
    """Return an option that takes a finite number from `least` to `most`; `words` is its help text."""
    return typer.Option(callback=require_finite, min=least, max=most, metavar=metavar, help=words)


def require_port(value: int | None) -> int | None:
    """Return the port; the callback of port options. Raises typer.BadParameter."""
    if value is not None and value not in PORTS:
        raise typer.BadParameter(f"{value} is not a port: give a number from {PORTS[0]} to {PORTS[-1]}.")
    return value


def port_option(words: str) -> Any:
    """Return an option that takes a port; `words` is its help text."""
    return typer.Option(callback=require_port, help=words)
