"""What this machine has, as screens and tools show it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from backend.hardware import probe
from backend.service.workspace import Workspace


class AcceleratorView(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    memory_bytes: int
    compute_capability: str
    driver: str


class MachineView(BaseModel):
    """Sizes in bytes. `features` are the processor's, those that decide which kernels run."""

    model_config = ConfigDict(frozen=True)

    cpu: str
    cores: int
    features: tuple[str, ...]
    memory_bytes: int
    free_memory_bytes: int
    free_disk_bytes: int
    home: str
    os: str
    machine: str
    python: str
    compiler: bool
    accelerators: tuple[AcceleratorView, ...]


def show(workspace: Workspace) -> MachineView:
    facts = probe.probe()
    taken = {name: facts[name] for name in ("cpu", "cores", "memory_bytes", "os", "machine", "python")}
    return MachineView(
        **taken, features=tuple(facts["flags"]), free_memory_bytes=probe.free_memory(),
        free_disk_bytes=probe.free_disk(workspace.settings.home), home=str(workspace.settings.home),
        compiler=probe.has_compiler(), accelerators=tuple(AcceleratorView(**item) for item in _accelerators()),
    )  # fmt: skip


def _accelerators() -> list[dict[str, object]]:
    return [{name: getattr(item, name) for name in AcceleratorView.model_fields} for item in probe.accelerators()]
