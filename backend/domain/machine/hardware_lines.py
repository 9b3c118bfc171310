"""The hardware and the versions of an evaluation, in one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.figures import counted

_HARDWARE = (
    "accelerator",
    "accelerators",
    "gpu",
    "gpus",
    "instance",
    "cpu",
    "cpu_model",
    "processor",
    "model",
    "cores",
    "node",
)


def hardware_line(hardware: Mapping[str, Any]) -> str:
    """Return the hardware in one line, from whichever of the known keys there are."""
    items = [_item(key, hardware[key]) for key in _HARDWARE if hardware.get(key)]
    items = items or [_item(key, value) for key, value in hardware.items() if isinstance(value, str | int | float)]
    return ", ".join(items) or "not recorded"


def _item(key: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(entry.get("name", entry)) if isinstance(entry, Mapping) else str(entry) for entry in value)
    if key == "node":
        return f"node {value}"
    return counted(value, "core") if key == "cores" else str(value)


def versions_line(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions not recorded"
