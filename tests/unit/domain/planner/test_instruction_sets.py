"""What a processor's instruction sets make of 8 and 4 bits: in the check, in the estimate, and against what was
measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.catalog.bundled import models
from backend.domain.evaluation.memory_limit import BANDWIDTH
from backend.domain.machine import instruction_sets
from backend.domain.machine.device import Device
from backend.domain.machine.instruction_sets import InstructionSet
from backend.domain.model.facts import ModelCard
from backend.domain.planner import roofline
from backend.domain.planner.estimate import estimate
from backend.domain.planner.estimate_context import EstimateContext
from backend.domain.planner.estimate_correction import geometric_middle
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules.target_facts import TargetFacts
from backend.settings import ASSETS
from benchmarks import planner

W8A8 = recipe.read({"steps": [{"quantize": {"method": "w8a8"}}]})
AWQ = recipe.read({"steps": [{"quantize": {"method": "awq", "group_size": 64}}]})
FAR, FURTHER = 0.25, 0.3
"""Of the measured ratio, at most; the headline's medians have intervals of a fifth and more."""


def processor(kind: InstructionSet, bandwidth: float = 48e9, flops: float = 0.98e12) -> Device:
    """By default as this machine was probed on most days."""
    return Device("cpu", "cpu", 1, 24 * 2**30, bandwidth, flops, measured=True, instructions=kind)


def starter() -> ModelCard:
    card = models.card("starter")
    assert card is not None
    return card


def times(card: ModelCard, chosen: Recipe, device: Device, streams: int) -> float:
    """Faster a token than the original, of the middles of both ranges."""
    load = ExpectedLoad(input_tokens=144, output_tokens=39, concurrency=streams)
    scenarios = [roofline.make_scenario(card, recipe, device, 1, load) for recipe in (Recipe(), chosen)]
    original, changed = (roofline.speed(scenario) for scenario in scenarios if scenario)
    return geometric_middle(original.tpot) / geometric_middle(changed.tpot)


def tpots(variant: dict[str, Any]) -> dict[int, float]:
    return {level["concurrency"]: level["tpot_ms"]["p50"] for level in variant["levels"]}


def test_what_8_bits_give_is_what_the_headline_measured_here() -> None:
    document = json.loads((planner.RESULTS / "headline.json").read_text())
    original, w8a8 = map(tpots, document["variants"][:2])
    for streams, measured in w8a8.items():
        predicted = times(planner.wide_card(document["parameters"]), W8A8, processor("vnni"), streams)
        assert predicted == pytest.approx(original[streams] / measured, rel=FURTHER), streams


def rows(variant: dict[str, Any]) -> dict[int, int]:
    """Streams -> tokens that a pass held, by the server's counters: one a stream, and what was guessed for it."""
    counted = {level["concurrency"]: level["drafting"] for level in variant["levels"]}
    return {
        streams: round(streams * (1 + each["drafted_tokens"] / (each["generated_tokens"] - each["accepted_tokens"])))
        for streams, each in counted.items()
    }


def test_what_8_bits_give_is_what_the_demo_measured_here() -> None:
    """With n-grams on both sides, so that the weights alone differ: SmolLM2-135M, of which the tied head stays
    16-bit."""
    (row,) = json.loads((ASSETS / "demo" / "amd-epyc" / "evaluations.json").read_text())
    document = row["document"]
    assert "avx512_vnni" in document["hardware"]["flags"]
    plain, eight = (
        next(each for each in document["variants"] if each["name"] == name)
        for name in ("adaptive n-gram", "smoothquant + adaptive n-gram")
    )
    shape = {
        "layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "vocabulary": 49_152,
        "parameters": 134_515_008,
        "weights_bytes": 269_060_552,
        "tied_embeddings": True,
    }
    device = processor("vnni", document["hardware"][BANDWIDTH], 0.4e12)
    for streams, measured in tpots(eight).items():
        predicted = times(starter().model_copy(update=shape), W8A8, device, rows(eight)[streams])
        assert predicted == pytest.approx(tpots(plain)[streams] / measured, rel=FAR), streams


@pytest.mark.parametrize("streams", [1, 4, 64])
def test_the_estimate_depends_on_the_instruction_set_and_the_rows(streams: int) -> None:
    card = planner.wide_card(457_000_000)
    amx, vnni, none = (times(card, AWQ, processor(kind), streams) for kind in ("amx", "vnni", "none"))
    assert amx > 1 > vnni == none, "without AMX vLLM unpacks 4 bits to 16"
    slower = times(card, W8A8, processor("none"), streams) < times(card, W8A8, processor("vnni"), streams)
    assert slower is (streams < 16), "at many streams 8 bits without instructions win against 16 bits without any"
    eight = times(card, W8A8, processor("amx"), streams)
    assert (amx > eight) is (streams < 16), "on AMX 4 bits win at few rows and 8 at many, as the kernels were measured"


def test_the_estimate_says_what_it_took_and_where_it_was_measured() -> None:
    context = EstimateContext(target="local", facts=TargetFacts(device=processor("vnni"), features=("avx512_vnni",)))
    formulas = estimate(starter(), W8A8, context, 1).formulas
    assert "as fast as in 16 bit at 1 row" in formulas["products"] and "AMD EPYC" in formulas["products"]
    assert "products" not in estimate(starter(), Recipe(), context, 1).formulas


def test_between_measured_rows_a_gain_is_between_theirs() -> None:
    assert instruction_sets.speed_range("amx", 4, 1) == (4.6, 4.3)
    assert instruction_sets.speed_range("amx", 4, 1000) == (1.4, 1.4)
    at = instruction_sets.speed_range("amx", 4, 32)
    assert at == pytest.approx((1.9, 1.9))
    assert "4.3 to 4.6 times as fast as in 16 bit at 1 row" in instruction_sets.describe_speeds("amx", 4)
