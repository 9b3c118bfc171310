"""The engine of this repository: optimizes one decoder layer at a time and writes compressed-tensors checkpoints."""

from backend.engines.native.passes import devices as devices
from backend.engines.native.quantize import quantize as quantize
from backend.engines.native.sensitivity import measure as measure
