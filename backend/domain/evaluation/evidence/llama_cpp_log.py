"""Parses what llama.cpp's server writes about itself at start."""

from __future__ import annotations

from collections.abc import Iterable


def parse_settings(lines: Iterable[str]) -> dict[str, str]:
    return {}
