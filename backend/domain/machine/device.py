"""The hardware a plan is for, as numbers: accelerators, instances with their prices, and one `Device` that the rules
read.

Knows nothing of files (catalog.instances reads them) and nothing of this machine (service.targets asks the probes).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import ConfigDict, Field

from backend.domain.frozen import Frozen
from backend.domain.machine.instruction_sets import InstructionSet
from backend.domain.validation import matching

Hardware = Literal["cpu", "cuda", "neuron"]

GIB = 1 << 30
GB = 10**9


class Device(NamedTuple):
    """Equal `units` that work together; for Neuron a unit is a core. Figures are of one unit, nominal peaks or
    measured.

    Bytes, bytes/s and operations/s; None where there is no source.
    """

    name: str
    hardware: Hardware
    units: int
    memory_bytes: int
    bandwidth: float | None = None
    flops: float | None = None
    """16-bit, dense."""
    int8_ops: float | None = None
    capability: tuple[int, int] | None = None
    link: float | None = None
    """One direction of the link to the others."""
    measured: bool = False
    source: str = ""
    instructions: InstructionSet = "none"
    """Instruction set of a processor."""


class _Row(Frozen):
    model_config = ConfigDict(strict=True)


class Accelerator(_Row):
    """A row of [[accelerators]]; the field names say the units. Rates are dense; None: not supported, or no source."""

    name: str = Field(min_length=1)
    vendor: Literal["NVIDIA", "AWS"]
    memory_gb_nominal: float = Field(gt=0)
    memory_gib: float = Field(gt=0)
    memory_gb_s: float = Field(gt=0)
    fp16_tflops: float = Field(gt=0)
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    int8_tops: float | None = None
    compute_capability: Annotated[str, matching(r"\d+\.\d", "it must be a version such as 8.6")] | None = None
    neuron_cores: int | None = Field(None, gt=0)
    local: bool = False
    interconnect: Literal["none", "pcie", "nvlink", "neuronlink"]
    interconnect_gb_s: float | None = None
    source: str
    note: str | None = None

    @property
    def hardware(self) -> Hardware:
        return "cuda" if self.vendor == "NVIDIA" else "neuron"


class Instance(_Row):
    """A row of [[instances]]. `sagemaker_usd_per_hour` is None where no source was found; it is never derived."""

    name: Annotated[str, matching(r"ml\.[a-z0-9-]+\.[a-z0-9]+", "it must be an instance such as ml.g5.xlarge")]
    family: str
    accelerator: str
    accelerator_count: int = Field(gt=0)
    memory_gib_per_accelerator: float = Field(gt=0)
    memory_gib_total: float = Field(gt=0)
    memory_gb_s_per_accelerator: float = Field(gt=0)
    fp16_tflops_per_accelerator: float = Field(gt=0)
    bf16_tflops_per_accelerator: float | None = None
    fp8_tflops_per_accelerator: float | None = None
    int8_tops_per_accelerator: float | None = None
    interconnect: Literal["none", "pcie", "nvlink", "neuronlink"]
    interconnect_gb_s: float | None = None
    vcpu: int = Field(gt=0)
    ram_gib: float = Field(gt=0)
    sagemaker_endpoint: bool
    optimization_job: bool
    sagemaker_usd_per_hour: float | None = Field(None, gt=0)
    price_source: str | None = None
    price_region: str | None = None
    price_as_of: str | None = None
    price_refreshed: bool = False
    """The price was asked of AWS after this version was made; never set in the data."""
    discount: float = Field(0.0, ge=0, lt=1)
    """The share that is taken off `sagemaker_usd_per_hour` already; never set in the data."""
    ec2_usd_per_hour: float | None = Field(None, gt=0)
    ec2_price_source: str | None = None
    ec2_price_as_of: str | None = None


def card_device(card: Accelerator, count: int = 1) -> Device:
    """`count` of these accelerators; a Neuron accelerator counts as its cores."""
    cores = card.neuron_cores or 1
    major, _, minor = (card.compute_capability or "").partition(".")
    return Device(
        name=card.name,
        hardware=card.hardware,
        units=count * cores,
        memory_bytes=int(card.memory_gib * GIB) // cores,
        bandwidth=card.memory_gb_s * GB / cores,
        flops=(card.bf16_tflops or card.fp16_tflops) * 1e12 / cores,
        int8_ops=card.int8_tops * 1e12 / cores if card.int8_tops else None,
        capability=(int(major), int(minor)) if major else None,
        # The data give both directions together, and for Neuron the whole accelerator's.
        link=card.interconnect_gb_s * GB / 2 / cores if card.interconnect_gb_s else None,
        source=card.source,
    )


VISIBLE_GIB = {"T4": 15.0, "H200": 140.0}
"""Memory that the driver shows where it is less than the data's figure; notes in assets/catalog/instances.toml."""


def instance_device(instance: Instance, card: Accelerator) -> Device:
    """The instance's own memory and link (trn1n differs from trn1), the card's rates."""
    cores = card.neuron_cores or 1
    link = instance.interconnect_gb_s
    memory = VISIBLE_GIB.get(card.name, instance.memory_gib_per_accelerator)
    return card_device(card, instance.accelerator_count)._replace(
        memory_bytes=int(memory * GIB) // cores, link=link * GB / 2 / cores if link else None
    )
