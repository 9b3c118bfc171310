"""Memory of an optimize job: against peaks that were measured, and that it is bounded by a layer, not by the model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.model.facts import ModelFacts
from backend.domain.needs import job_memory
from backend.domain.planner.estimate import estimate_needs, original_bytes
from tests.helpers.model_sizes import LLAMA_70B, facts, quantizing

WIDE = facts(intermediate_size=24576, parameters=117_313_024)


@pytest.mark.parametrize(
    ("measured", "model_facts", "options"),
    [
        (207e6, facts(), {"method": "awq", "samples": 16}),
        (1090e6, WIDE, {"method": "w8a8", "samples": 4}),
        (869e6, WIDE, {"method": "rtn", "samples": 2, "length": 64}),
    ],
)
def test_it_is_near_the_peaks_that_were_measured(
    measured: float, model_facts: ModelFacts, options: dict[str, Any]
) -> None:
    """Above the 450 MB that the imports took: docs/decisions/0015."""
    assert estimate_needs(model_facts, quantizing(**options)).memory_bytes == pytest.approx(450e6 + measured, rel=0.2)


SMOLLM2 = facts(
    layers=30, hidden_size=576, intermediate_size=1536, parameters=134_515_008, heads=9, kv_heads=3, vocabulary=49152
)


@pytest.mark.parametrize(
    ("peak", "model_facts", "options"),
    [
        (658e6, facts(), {"method": "w8a8"}),
        (792e6, facts(), {"method": "awq"}),
        (801e6, facts(), {"method": "gptq"}),
        (964e6, facts(), {"method": "awq", "target_bits": 5}),
        (1389e6, WIDE, {"method": "w8a8"}),
        (786e6, SMOLLM2, {"method": "w8a8"}),
        (2210e6, SMOLLM2, {"method": "awq", "group_size": 64, "target_bits": 5}),
    ],
)
def test_it_is_near_the_peaks_of_whole_jobs(peak: float, model_facts: ModelFacts, options: dict[str, Any]) -> None:
    """VmHWM of workers, 2026-11-22 and 23 (benchmarks/job_costs.py); the last where 0.83 GB was told."""
    assert estimate_needs(model_facts, quantizing(**options)).memory_bytes == pytest.approx(peak, rel=0.2)


def test_a_70b_model_needs_what_a_layer_needs_not_eight_bytes_a_parameter() -> None:
    chosen = quantizing(method="awq")
    memory_bytes = estimate_needs(LLAMA_70B, chosen).memory_bytes
    layer = 4 * (LLAMA_70B.parameters - 2 * LLAMA_70B.vocabulary * LLAMA_70B.hidden_size) / LLAMA_70B.layers
    assert 6 * layer < memory_bytes < 9 * layer < LLAMA_70B.parameters
    library = estimate_needs(LLAMA_70B, quantizing(method="awq", engine="llm-compressor")).memory_bytes
    assert library == memory_bytes + original_bytes(LLAMA_70B)
    assert estimate_needs(LLAMA_70B, chosen).formulas["memory"] == job_memory.FORMULA


@given(times=st.integers(2, 40), tokens=st.integers(1, 4096))
def test_it_does_not_grow_with_the_number_of_layers(times: int, tokens: int) -> None:
    """Beyond the rounding of what counts as a layer's part."""
    one = facts()
    outside = one.vocabulary * one.hidden_size
    deep = facts(layers=3 * times, parameters=(one.parameters - outside) * times + outside)
    chosen = quantizing(method="gptq", samples=tokens, length=8)
    assert estimate_needs(deep, chosen).memory_bytes == pytest.approx(
        estimate_needs(one, chosen).memory_bytes, rel=0.01
    )
