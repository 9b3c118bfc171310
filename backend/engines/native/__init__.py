"""The engine of this repository: INT8 W8A8 and AWQ on Gram matrices, written as compressed-tensors checkpoints."""

from backend.engines.native.quantize import quantize as quantize
