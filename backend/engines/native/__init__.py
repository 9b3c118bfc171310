"""The engine of this repository: optimizes one decoder layer at a time and writes compressed-tensors checkpoints."""

from backend.engines.native.quantize import quantize as quantize
from backend.engines.native.sensitivity import measure as measure
from backend.layered.passes import devices as devices
