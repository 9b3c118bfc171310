"""The capability table: technique x engine x hardware, as data readable without torch.

A row exists for what this version can do; what has no row is refused with the reason given by `capability`.
"""

from __future__ import annotations

from typing import NamedTuple

GROUP_SIZE = {"awq": 128, "gptq": 128, "rtn": 128}
"""Default group size of the methods that quantize in groups."""


class Capability(NamedTuple):
    supported: bool
    reason: str = ""
    source: str = "capability table"


_SUPPORTED: dict[tuple[str, str | None, str], frozenset[str]] = {
    ("quantize", "w8a8", "native"): frozenset({"cpu", "cuda"}),
    ("quantize", "awq", "native"): frozenset({"cpu", "cuda"}),
    ("speculate", "draft", "native"): frozenset({"cpu", "cuda"}),
    ("speculate", "ngram", "native"): frozenset({"cpu", "cuda"}),
    ("compile", None, "native"): frozenset({"cpu", "cuda"}),
}


def capability(technique: str, method: str | None, engine: str, hardware: str) -> Capability:
    """Whether `engine` can do it here, and if not, why and what can be used instead."""
    label = technique if method is None else f"{technique} with {method}"
    places = _SUPPORTED.get((technique, method, engine))
    if places is None:
        return Capability(False, f"`{label}` by the {engine} engine is not available in this version: {_instead(technique)}.")
    if hardware not in places:
        return Capability(False, f"`{label}` does not run on {hardware}: it runs on {', '.join(sorted(places))}.")
    return Capability(True)


def supported() -> list[tuple[str, str | None, str, list[str]]]:
    """Every row: technique, method, engine, kinds of hardware."""
    return [(*key, sorted(places)) for key, places in _SUPPORTED.items()]


def _instead(technique: str) -> str:
    methods = [f"`{method}`" for (name, method, _) in _SUPPORTED if name == technique and method]
    return f"use {' or '.join(methods)} by the native engine" if methods else "leave the step out"
