"""The machine and its engines in rows and words. Pure."""

from __future__ import annotations

from typing import Any

from app.words import size
from backend.domain.environments import check_installable
from backend.domain.errors import RequestError
from backend.service.engines import EngineStatus
from backend.service.machine import MachineView


def figures(machine: MachineView) -> list[tuple[str, str, str | None]]:
    """(label, value, what else)."""
    gpus = machine.accelerators
    return [
        ("Accelerators", str(len(gpus)), ", ".join(gpu.name for gpu in gpus) or "everything runs on the processor"),
        ("Processor", f"{machine.cores} cores", machine.cpu),
        ("Memory", size(machine.memory_bytes), f"{size(machine.free_memory_bytes)} free"),
        ("Disk", f"{size(machine.free_disk_bytes)} free", f"under {machine.home}"),
    ]


def accelerator_rows(machine: MachineView) -> list[dict[str, Any]]:
    return [
        {
            "Accelerator": gpu.name,
            "Memory": size(gpu.memory_bytes),
            "Compute capability": gpu.compute_capability,
            "Driver": gpu.driver,
        }
        for gpu in machine.accelerators
    ]


def engine_line(engine: EngineStatus) -> str:
    """Status as icon and word, and the version."""
    if engine.installed and engine.reason is None:
        return f":material/check_circle: installed, {engine.version}"
    if engine.installed:
        return f":material/warning: installed, {engine.version}, but {engine.reason}"
    return f":material/radio_button_unchecked: {engine.reason or 'not installed'}"


def offered(engine: EngineStatus) -> str | None:
    """The one thing to do with it: install, reinstall, or nothing."""
    try:
        check_installable(engine.name)
    except RequestError:
        return None
    if engine.installed:
        return "Reinstall"
    return None if engine.reason and engine.reason.startswith("needs ") else "Install"
