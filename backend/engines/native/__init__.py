"""The engine of this repository: optimizes one decoder layer at a time and writes compressed-tensors checkpoints."""

from backend.engines.native.mixed.sensitivity import measure as measure
from backend.engines.native.quantize import quantize as quantize
from backend.layered.layer_passes import devices as devices
