"""The conditions of a serving kernel on a layer and the hardware, as data, and the check of which a layer does not
meet.

Pure. `table` has the rows, `kernel_choice` the order in which vLLM tries them.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Scheme = Literal["wNa16", "int8", "fp8", "fp8-block", "nvfp4", "mxfp4", "mxfp8", "w4a8-fp8"]
"""The way vLLM reads a checkpoint: integers of 4 or 8 bits times 16-bit inputs, INT8 times INT8, FP8 times FP8 with
scales of outputs or of blocks, FP4 times FP4 and FP8 times FP8 in small groups, INT4 times FP8."""
Condition = Literal[
    "bits", "zero-points", "group-size", "shape", "dtype", "activations", "compute-capability", "package", "processor"
]
Capability = tuple[int, int]

FP8_BLOCK = 128
"""Outputs and inputs of a weight that share an FP8 scale, and inputs of a token (DeepSeek-V3, arXiv 2412.19437)."""
CHANNEL = -1
"""The group size of one scale an output channel, as vLLM writes it."""


STORED_TYPES: dict[str, str] = {
    "int8": "int8",
    "fp8": "float8_e4m3fn",
    "fp8-block": "float8_e4m3fn",
    "nvfp4": "float4_e2m1f",
    "mxfp4": "float4_e2m1f",
    "mxfp8": "float8_e4m3fn",
    "w4a8-fp8": "int4",
}
"""Types of stored weights by schemes that have one alone, in vLLM's names."""


class StoredLayout(NamedTuple):
    """The form in which a quantized linear is stored."""

    scheme: Scheme
    bits: int = 8
    group: int = CHANNEL
    """Weights that share a scale; CHANNEL where an output channel does."""
    zero_points: bool = False
    activations: Literal["none", "dynamic", "static"] = "none"
    format: Literal["compressed-tensors", "autoawq"] = "compressed-tensors"

    @property
    def type(self) -> str:
        """The type of the stored weights, in vLLM's names (scalar_type.py)."""
        if self.scheme in STORED_TYPES:
            return STORED_TYPES[self.scheme]
        return f"uint{self.bits}" if self.zero_points else f"uint{self.bits}b{1 << (self.bits - 1)}"

    @property
    def scales(self) -> str:
        return "one scale an output channel" if self.group == CHANNEL else f"groups of {self.group}"


class Layer(NamedTuple):
    """A linear as vLLM has it: fused with those that read the same input, and cut for tensor parallelism.

    `inputs` x `outputs` are those of one device, `all_inputs` those before the cut. `experts`: each expert has one.
    """

    name: str
    inputs: int
    outputs: int
    all_inputs: int
    experts: bool = False
    parts: tuple[int, ...] = ()
    """Outputs of each matrix that is fused into it, on one device."""


class Chip(NamedTuple):
    """The hardware that serves. None in `capability`: not known, and nothing is refused for it."""

    hardware: Literal["cpu", "cuda"]
    capability: Capability | None = None
    dtype: Literal["float16", "bfloat16", "float32"] = "bfloat16"
    """The type of the inputs."""
    features: frozenset[str] = frozenset()
    """Instruction sets of a processor, by their names in Linux."""


class Conditions(NamedTuple):
    """Conditions that must hold; an empty field requires nothing. Sizes in elements, `below` is excluded."""

    lowest: Capability | None = None
    below: Capability | None = None
    types: frozenset[str] = frozenset()
    """Stored types, in vLLM's names."""
    dtypes: frozenset[str] = frozenset()
    """Types of the inputs."""
    activations: frozenset[str] = frozenset()
    groups: frozenset[int] = frozenset()
    whole_group: bool = False
    """A group of all inputs is taken too, whatever `groups` says."""
    group_multiple: int = 1
    group_block: int = 0
    """A larger group must be a multiple of this, and ..."""
    divides_block: bool = False
    """... a smaller one must divide it."""
    least_group: int = 0
    grouped: bool = False
    """One scale an output channel is not taken."""
    even_groups: Literal["", "all", "device"] = ""
    """Groups must divide all inputs, or those of one device."""
    spans: bool = False
    """A group of all inputs need not divide them."""
    inputs_multiple: int = 1
    outputs_multiple: int = 1
    part_multiple: int = 1
    """Outputs of each fused matrix are a multiple of this."""
    least_size: int = 0
    """Inputs and outputs are at least as many."""
    packed_outputs: bool = False
    """Outputs must fill words of 32 bits: a multiple of 8 of 4 bits, of 4 of 8 bits."""
    package: str = ""
    """A Python package that vLLM does not install."""
    feature: str = ""
    """An instruction set."""


class UnmetCondition(NamedTuple):
    """A condition that does not hold. `words` finish a sentence that begins with the kernel's name."""

    condition: Condition
    words: str


def unmet_conditions(
    conditions: Conditions, layout: StoredLayout, layer: Layer, chip: Chip, packages: frozenset[str]
) -> tuple[UnmetCondition, ...]:
    """Return every condition that does not hold, in a fixed order; `packages` are those that are installed."""
    checks = (
        _capability(conditions, chip),
        _types(conditions, layout),
        _activations(conditions, layout),
        _dtype(conditions, chip),
        _group(conditions, layout, layer),
        _shape(conditions, layout, layer),
        _installed(conditions, chip, packages),
    )
    return tuple(failure for failure in checks if failure is not None)


def _capability(conditions: Conditions, chip: Chip) -> UnmetCondition | None:
    has = chip.capability
    if has is None or chip.hardware != "cuda":
        return None
    if conditions.lowest and has < conditions.lowest:
        words = f"needs compute capability {_version(conditions.lowest)} and finds {_version(has)}"
        return UnmetCondition("compute-capability", words)
    if conditions.below and has >= conditions.below:
        return UnmetCondition("compute-capability", f"is not built for compute capability {_version(has)}")
    return None


def _version(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _types(conditions: Conditions, layout: StoredLayout) -> UnmetCondition | None:
    if not conditions.types or layout.type in conditions.types:
        return None
    plain = layout._replace(zero_points=False)
    if layout.zero_points and plain.type in conditions.types:
        return UnmetCondition("zero-points", f"takes no zero points with {layout.bits} bits")
    return UnmetCondition("bits", f"takes no weights of type {layout.type}")


def _activations(conditions: Conditions, layout: StoredLayout) -> UnmetCondition | None:
    if not conditions.activations or layout.activations in conditions.activations:
        return None
    accepted = " or ".join(sorted(conditions.activations))
    return UnmetCondition("activations", f"takes {accepted} activation scales, not {layout.activations} ones")


def _dtype(conditions: Conditions, chip: Chip) -> UnmetCondition | None:
    if not conditions.dtypes or chip.dtype in conditions.dtypes:
        return None
    return UnmetCondition("dtype", f"takes inputs of {' or '.join(sorted(conditions.dtypes))}, not {chip.dtype}")


def _group(conditions: Conditions, layout: StoredLayout, layer: Layer) -> UnmetCondition | None:
    """Return the first condition on groups that does not hold."""
    # 1. One scale for each output channel.
    size = layout.group
    if size == CHANNEL:
        fails = conditions.grouped or bool(conditions.groups and CHANNEL not in conditions.groups)
        return UnmetCondition("group-size", "takes no scale an output channel, only groups") if fails else None
    # 2. The sizes that the kernel takes.
    whole = conditions.whole_group and size == layer.all_inputs
    if conditions.groups and size not in conditions.groups and not whole:
        return UnmetCondition("group-size", f"takes groups of {_listed(conditions.groups - {CHANNEL})}, not of {size}")
    if size % conditions.group_multiple:
        return UnmetCondition("group-size", f"takes groups of a multiple of {conditions.group_multiple}, not of {size}")
    if size < conditions.least_group:
        return UnmetCondition("group-size", f"takes groups of {conditions.least_group} and more, not of {size}")
    # 3. Sizes beside the block that the kernel works on.
    block = conditions.group_block
    if block and ((size > block and size % block) or (size < block and conditions.divides_block and block % size)):
        fits = (
            f"a multiple or a divisor of {block}" if conditions.divides_block else f"up to {block} or a multiple of it"
        )
        return UnmetCondition("group-size", f"takes groups of {fits}, not of {size}")
    # 4. Groups that do not divide the inputs.
    width = layer.inputs if conditions.even_groups == "device" else layer.all_inputs
    spanning = conditions.spans and size >= layer.all_inputs
    if conditions.even_groups and not spanning and width % size:
        what = f"the {width} inputs of the {layer.name} matrix"
        return UnmetCondition("group-size", f"needs groups that divide {what}, and {size} does not")
    return None


def _listed(sizes: frozenset[int]) -> str:
    *others, last = (str(size) for size in sorted(sizes))
    return f"{', '.join(others)} or {last}" if others else last


def _shape(conditions: Conditions, layout: StoredLayout, layer: Layer) -> UnmetCondition | None:
    outputs = math.lcm(conditions.outputs_multiple, 32 // layout.bits if conditions.packed_outputs else 1)
    for what, size, multiple in (
        ("inputs", layer.inputs, conditions.inputs_multiple),
        ("outputs", layer.outputs, outputs),
    ):
        if size % multiple:
            words = f"takes {what} of a multiple of {multiple}, and the {layer.name} matrix has {size}"
            return UnmetCondition("shape", words)
        if size < conditions.least_size:
            words = f"takes {what} from {conditions.least_size} on, and the {layer.name} matrix has {size}"
            return UnmetCondition("shape", words)
    uneven = next((size for size in layer.parts if size % conditions.part_multiple), None)
    if uneven is not None:
        words = f"takes outputs of a multiple of {conditions.part_multiple}, and one of the {layer.name} matrices has"
        return UnmetCondition("shape", f"{words} {uneven}")
    return None


def _installed(conditions: Conditions, chip: Chip, packages: frozenset[str]) -> UnmetCondition | None:
    if conditions.package and conditions.package not in packages:
        return UnmetCondition("package", f"needs the package {conditions.package}")
    if conditions.feature and conditions.feature not in chip.features:
        return UnmetCondition("processor", f"needs a processor with {conditions.feature}")
    return None
