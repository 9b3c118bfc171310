"""The planner's predictions by engine, held against what was measured of SmolLM2-135M on two cores of an AMD EPYC."""

from __future__ import annotations

from typing import get_args

import pytest

from backend.domain.machine.device import GIB, Device
from backend.domain.model.facts import ModelCard
from backend.domain.needs import engine_costs, serving_memory
from backend.domain.planner import estimate, roofline
from backend.domain.planner.engine_fit import engine_fits
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_context import EstimateContext
from backend.domain.planner.estimate_correction import Calibration
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe.recipe import Recipe, Serving
from backend.domain.recipe.serving_engines import CacheType, EngineName
from backend.domain.rules.target_facts import TargetFacts
from tests.helpers.checked_cards import card

EPYC = Device("processor", "cpu", 1, 24 * GIB, 30.2e9, 0.45e12, measured=True)
"""Rates as the probe measured them (benchmarks/results/planner.md)."""
Q8_0_BYTES, Q4_1_BYTES = 145_000_000, 98_362_432
MEASURED: dict[tuple[EngineName, int], tuple[float, float, float]] = {
    ("vllm", 1): (98, 20.9, 36.5),
    ("vllm", 4): (187, 23.9, 118.5),
    ("vllm", 8): (432, 33.8, 151),
    ("llama.cpp", 1): (166, 9.3, 61.3),
    ("llama.cpp", 4): (614, 38.6, 64.6),
    ("llama.cpp", 8): (1294, 45.5, 79.4),
    ("openvino", 1): (110, 15.4, 51.4),
    ("openvino", 4): (390, 18.1, 120.8),
    ("openvino", 8): (850, 18.8, 166.7),
}
"""Engine and streams -> ms to the first token, ms a token, output tokens/s: bf16 and Q8_0, prompts of about 117
tokens, 32 tokens out."""


def smollm2(gguf_bytes: int) -> ModelCard:
    shapes = {"layers": 30, "hidden_size": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "vocabulary": 49152}
    sizes = {"parameters": 134_515_008, "weights_bytes": 269_060_552, "max_positions": 8192}
    return card(**shapes, **sizes, gguf_kept=bool(gguf_bytes), gguf_bytes=gguf_bytes)


def served_by(engine: EngineName, **serving: object) -> Recipe:
    return Recipe(serving=Serving.model_validate({"engine": engine, **serving}))


def estimated(engine: EngineName, calibration: Calibration | None = None) -> Estimate:
    context = EstimateContext(target="local", facts=TargetFacts(device=EPYC), calibration=calibration)
    return estimate.estimate(smollm2(Q4_1_BYTES), served_by(engine), context, 1)


@pytest.mark.parametrize(("engine", "streams"), MEASURED)
def test_measured_speeds_lie_within_the_predicted_ranges(engine: EngineName, streams: int) -> None:
    load = ExpectedLoad(input_tokens=117, output_tokens=32, concurrency=streams)
    scenario = roofline.make_scenario(smollm2(Q8_0_BYTES), served_by(engine), EPYC, 1, load)
    assert scenario is not None
    speed, (ttft, tpot, rate) = roofline.speed(scenario), MEASURED[engine, streams]
    assert speed.ttft[0] <= ttft / 1000 <= speed.ttft[1]
    assert speed.tpot[0] <= tpot / 1000 <= speed.tpot[1]
    assert speed.output_tokens_per_s[0] <= rate <= speed.output_tokens_per_s[1]


@pytest.mark.parametrize("engine", get_args(EngineName))
@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("rate", [0.2, 5.0, 80.0])
def test_every_engine_carries_a_rate_with_its_slots_and_its_correction(
    engine: EngineName, factor: float, rate: float
) -> None:
    calibration = Calibration(concurrency=1, rate=factor, points=())
    context = EstimateContext(target="local", facts=TargetFacts(device=EPYC), calibration=calibration)
    load = ExpectedLoad(input_tokens=117, output_tokens=32, rate=rate)
    at_rate = estimate.estimate(smollm2(Q4_1_BYTES), served_by(engine), context.model_copy(update={"load": load}), 1)
    assert at_rate.output_tokens_per_s is not None and at_rate.carried_requests_per_s is not None
    assert at_rate.instances * at_rate.output_tokens_per_s[0] >= rate * 32 * (1 - 1e-9)
    assert (at_rate.instances - 1) * at_rate.carried_requests_per_s < rate
    # The same requests without a rate give the same speed: slots and correction are those of the estimate.
    same = context.model_copy(update={"load": load.model_copy(update={"rate": None, **_concurrency(at_rate)})})
    fixed = estimate.estimate(smollm2(Q4_1_BYTES), served_by(engine), same, 1)
    assert fixed.output_tokens_per_s == at_rate.output_tokens_per_s


def _concurrency(at_rate: Estimate) -> dict[str, int]:
    return {"concurrency": at_rate.load.concurrency}


@pytest.mark.parametrize(("cache", "resident"), [("auto", 312_872 * 1024), ("q8_0", 228_392 * 1024)])
def test_memory_of_llama_cpp_is_near_what_its_process_took(cache: CacheType, resident: int) -> None:
    """A server of the Q4_1 file with one pool of 8,192 tokens, before its first request."""
    recipe = served_by("llama.cpp", kv_cache_dtype=cache, max_num_seqs=1)
    memory = serving_memory.device_memory(smollm2(Q4_1_BYTES), recipe, EPYC, 1)
    least, most = memory.needed_bytes(8192)
    assert memory.tokens == (8192, 8192)
    assert 0.9 * least < resident < most


def test_cache_types_have_the_bytes_of_their_blocks() -> None:
    model, elements = smollm2(0), 2 * 30 * 3 * 64
    widths = {"auto": 2.0, "fp8": 1.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
    for cache, width in widths.items():
        assert serving_memory.kv_bytes(model, Serving.model_validate({"kv_cache_dtype": cache})) == elements * width


def test_an_estimate_follows_the_engine_and_names_its_basis() -> None:
    plain, gguf = estimated("vllm"), estimated("llama.cpp")
    assert (plain.weights_bytes, gguf.weights_bytes) == (269_060_552, Q4_1_BYTES)
    assert gguf.ready_seconds is not None and plain.ready_seconds is not None
    assert gguf.ready_seconds[1] < 5 < plain.ready_seconds[0]
    assert gguf.max_batch == 4 and "llama.cpp" in gguf.basis and "Predicted" in gguf.basis
    # What was measured on the machine takes the place of the prediction.
    measured = Calibration(concurrency=1, tpot=0.5, points=(), evaluation="e-1", ready_seconds=0.7)
    corrected = estimated("llama.cpp", measured)
    assert corrected.ready_seconds == (0.7, 0.7) and "e-1" in corrected.basis
    assert gguf.tpot_ms is not None and corrected.tpot_ms == (gguf.tpot_ms[0] / 2, gguf.tpot_ms[1] / 2)


def test_a_kept_gguf_file_fits_where_the_sixteen_bit_import_does_not() -> None:
    small = EPYC._replace(memory_bytes=650_000_000)
    with_file = {fit.engine: fit for fit in engine_fits(smollm2(Q4_1_BYTES), TargetFacts(device=small))}
    memory = with_file["llama.cpp"].memory_bytes
    assert (
        with_file["vllm"].too_large and with_file["llama.cpp"].fits and memory is not None and memory[1] < 300_000_000
    )
    plain = {fit.engine: fit for fit in engine_fits(smollm2(0), TargetFacts(device=EPYC))}
    assert plain["vllm"].fits and not plain["llama.cpp"].fits and "GGUF" in plain["llama.cpp"].reasons[0]


def test_nothing_is_predicted_for_an_engine_without_figures() -> None:
    assert engine_costs.find_costs("llama.cpp", "cuda") is None
    gpu = EPYC._replace(hardware="cuda", measured=False)
    assert roofline.make_scenario(smollm2(Q8_0_BYTES), served_by("llama.cpp"), gpu, 1, ExpectedLoad()) is None
