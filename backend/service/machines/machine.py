"""Facts of this machine as screens and tools show them."""

from __future__ import annotations

from backend.domain.errors import NotNow
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import JobState
from backend.domain.roles import Action
from backend.hardware import neuron, probe, processor_speed
from backend.hardware.processor_speed import MeasuredSpeed
from backend.service.jobs import jobs
from backend.service.workspace import Workspace


class AcceleratorView(Frozen):
    name: str
    memory_bytes: int
    compute_capability: str
    driver: str


class NeuronView(Frozen):
    """A device of AWS Neuron; its cores share its memory."""

    number: int
    cores: int
    memory_bytes: int
    busy: bool
    joined: int
    """Its cores that work as one."""


class ProcessorSpeed(Frozen):
    """Measured here: bytes/s read from memory, bytes/s of bfloat16 weights in a matrix-vector product, and 16-bit
    operations/s, all cores together; the best of `attempts`. `at` is ISO 8601 in UTC.
    """

    bandwidth: float
    weights: float
    flops: float
    at: str
    attempts: int


class MachineView(Frozen):
    """Sizes in bytes. `features` are the processor's, those that decide which kernels run."""

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
    neuron: tuple[NeuronView, ...] = ()
    instance_type: str | None = None
    """The EC2 instance type, if the machine has Neuron devices."""
    speed: ProcessorSpeed | None = None
    """None: not measured yet."""


def show(workspace: Workspace) -> MachineView:
    facts = probe.probe()
    cards = (AcceleratorView.model_validate(card, from_attributes=True) for card in probe.accelerators())
    copied = {name: facts[name] for name in ("cpu", "cores", "memory_bytes", "os", "machine", "python")}
    return MachineView(
        **copied,
        features=tuple(facts["flags"]),
        free_memory_bytes=probe.free_memory(),
        free_disk_bytes=probe.free_disk(workspace.settings.home),
        home=str(workspace.settings.home),
        compiler=probe.has_compiler(),
        accelerators=tuple(cards),
        neuron=tuple(NeuronView(**device._asdict()) for device in neuron.list_devices()),
        instance_type=neuron.instance_type(),
        speed=_speed(processor_speed.find_measured(workspace.settings.cache)),
    )


def measure(workspace: Workspace) -> ProcessorSpeed:
    """Measure memory bandwidth and arithmetic rate anew, which takes about six seconds.

    Raises ReadOnly in a demonstration, NotNow while a job runs: each would disturb the other.
    """
    workspace.check(Action.MEASURE)
    running = [job for job in jobs.active(workspace) if job.state is not JobState.QUEUED]
    if running:
        raise NotNow(f"“{running[0].title}” is running, and measuring now would disturb both: wait until it has ended.")
    with workspace.changing(Action.MEASURE, "processor"):
        measured = _speed(processor_speed.measure_again(workspace.settings.cache))
    assert measured is not None
    return measured


def _speed(measured: MeasuredSpeed | None) -> ProcessorSpeed | None:
    return (
        None
        if measured is None
        else ProcessorSpeed(**measured.speed._asdict(), at=measured.at, attempts=measured.attempts)
    )
