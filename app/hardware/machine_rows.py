"""Rows and text about the machine and its engines, and what can be done with an engine. Pure."""

from __future__ import annotations

from typing import Any

from app.formatting import document_time, size
from backend.domain.errors import RequestError
from backend.domain.figures import counted
from backend.domain.jobs.jobs import JobState
from backend.domain.machine.environments import require_installable, resolve
from backend.service.jobs.jobs import JobView
from backend.service.machines.engines import EngineStatus
from backend.service.machines.machine import MachineView, ProcessorSpeed


def figures(machine: MachineView) -> list[tuple[str, str, str | None]]:
    """Return (label, value, detail) of each figure."""
    names = [gpu.name for gpu in machine.accelerators]
    if machine.neuron:
        names.append(f"{sum(device.cores for device in machine.neuron)} NeuronCores")
    count = len(machine.accelerators) + len(machine.neuron)
    return [
        ("Accelerators", str(count), ", ".join(names) or "everything runs on the processor"),
        ("Processor", counted(machine.cores, "core"), machine.cpu),
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


def neuron_rows(machine: MachineView) -> list[dict[str, Any]]:
    return [
        {
            "Neuron device": f"{machine.instance_type or 'Neuron'}, device {device.number}",
            "Memory": size(device.memory_bytes),
            "NeuronCores": device.cores,
            "In use": "yes" if device.busy else "no",
        }
        for device in machine.neuron
    ]


def speed_figures(speed: ProcessorSpeed) -> list[tuple[str, str, str | None]]:
    """Return (label, value, source) of each figure."""
    when = f" on {document_time(speed.at)}" if speed.at else ""
    how = f"measured here{when}, best of {speed.attempts}" if speed.attempts > 1 else f"measured here{when}, once"
    return [
        ("Memory bandwidth", f"{speed.bandwidth / 1e9:.3g} GB/s", how),
        ("Weights read while decoding", f"{speed.weights / 1e9:.3g} GB/s", how),
        ("Matrix products in bfloat16", f"{speed.flops / 1e12:.3g} TFLOP/s", how),
    ]


def instruction_sets(machine: MachineView) -> list[dict[str, str]]:
    """Return the processor features that decide which kernels run, and their purposes."""
    return [{"Instruction set": name, "What it is for": PURPOSES.get(name, "")} for name in machine.features]


PURPOSES = {
    "avx2": "256-bit vectors: the least that vLLM's processor build needs on x86-64",
    "avx512f": "512-bit vectors",
    "avx512_vnni": "INT8 products, which W8A8 is fast on",
    "avx_vnni": "INT8 products on 256-bit vectors",
    "avx512_bf16": "bfloat16 products",
    "amx_tile": "matrix tiles",
    "amx_int8": "INT8 products on matrix tiles",
    "amx_bf16": "bfloat16 products on matrix tiles",
    "asimddp": "INT8 products on Arm",
    "bf16": "bfloat16 products on Arm",
    "i8mm": "INT8 matrix products on Arm",
    "sve": "scalable vectors on Arm",
}


def engine_line(engine: EngineStatus) -> str:
    """Return the status as icon and word, with the version."""
    if engine.installed and engine.reason is None:
        return f":material/check_circle: installed, {engine.version}"
    if engine.installed:
        return f":material/warning: installed, {engine.version}, but {engine.reason}"
    return ":material/radio_button_unchecked: not installed"


def why_not(engine: EngineStatus) -> str | None:
    """Return why an engine cannot be used here; None if it can, or if a click installs it."""
    if engine.installed or engine.reason is None or available_action(engine) == "Install":
        return None
    return f"{engine.reason[0].upper()}{engine.reason[1:].rstrip('.')}."


def available_action(engine: EngineStatus) -> str | None:
    """Return the one thing to do with an engine: install, reinstall, or nothing."""
    if not is_removable(engine.name) or resolve(engine.name).vendor:
        return None
    if engine.installed:
        return "Reinstall"
    return None if engine.reason and engine.reason.startswith("needs ") else "Install"


def is_removable(name: str) -> bool:
    """Tell whether the engine is one that can be installed and removed at all."""
    try:
        require_installable(name)
    except RequestError:
        return False
    return True


def last_failure(last: JobView | None, *, installed: bool) -> str | None:
    """Return why the last installation or removal failed; None if it did not, or if a later one succeeded."""
    if last is None or last.state not in {JobState.FAILED, JobState.LOST, JobState.CANCELLED}:
        return None
    if installed and last.title.startswith("Install"):
        return None
    return last.error or f"Status of the job: {last.state}."
