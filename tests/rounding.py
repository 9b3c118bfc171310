"""How far what vLLM computes may lie from its reference, by what this processor rounds."""

from __future__ import annotations

from typing import Any

from backend.domain.machine import instruction_sets
from backend.hardware import probe

W4A8 = instruction_sets.instruction_set(probe.probe()["flags"]) == "amx"
"""vLLM multiplies 4-bit weights by inputs that it rounds to 8 bits, which the dequantized reference does not."""


def apart(noise: Any, bits: int | None) -> Any:
    """Twice what bfloat16 alone makes, eight times where inputs of 4-bit weights are rounded too: 2.6 to 4.7 times were
    seen of tiny models (25 November 2026)."""
    return (8 if bits == 4 and W4A8 else 2) * noise
