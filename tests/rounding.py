"""How far what vLLM computes may lie from its reference, by what this processor rounds."""

from __future__ import annotations

from typing import Any

from backend.domain.machine import instruction_sets
from backend.hardware import probe

_FLAGS = probe.probe()["flags"]
W4A8 = instruction_sets.instruction_set(_FLAGS) == "amx"
"""vLLM multiplies 4-bit weights by inputs that it rounds to 8 bits, which the dequantized reference does not."""


def apart(noise: Any, bits: int | None) -> Any:
    """Twice what bfloat16 alone makes, eight times where inputs of 4-bit weights are rounded too: 2.6 to 4.7 times were
    seen of tiny models (25 November 2026)."""
    return (8 if bits == 4 and W4A8 else 2) * noise


def overflow(expected: Any) -> Any:
    """Return how far sums of pairs in 16 bits may bring oneDNN's 8-bit products: a share of the spread of the expected
    log-probabilities; unrelated numbers would be about 1.4 of it apart. 0 where the processor has wider sums.

    Of tiny models 0.1 to 0.5 were seen on an AMD EPYC without AVX-512 (2026-11-28).
    """
    return 0.7 * (expected - expected.mean()).abs().mean() if instruction_sets.is_avx2_alone(_FLAGS) else 0.0
