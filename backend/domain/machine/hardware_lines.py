"""What an evaluation ran on, in words: the hardware and the versions. Knows nothing of figures."""

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
    """What it ran on in one line, from whichever of the known keys there are."""
    found = [_item(key, hardware[key]) for key in _HARDWARE if hardware.get(key)]
    found = found or [_item(key, value) for key, value in hardware.items() if isinstance(value, str | int | float)]
    return ", ".join(found) or "not recorded"


def _item(key: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(entry.get("name", entry)) if isinstance(entry, Mapping) else str(entry) for entry in value)
    if key == "node":
        return f"node {value}"
    return counted(value, "core") if key == "cores" else str(value)


def versions_line(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions not recorded"
