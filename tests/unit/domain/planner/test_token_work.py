"""The work of a token against the formulas of a decoder: 2 P operations, P x b bytes, and the roofline's balance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.bundled import instances, published
from backend.domain.figures import compression_ratio
from backend.domain.model.facts import ModelFacts
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.token_work import find_token_work, flops_per_token
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe

AWQ = recipe.read({"steps": [{"quantize": {"method": "awq"}}]})
SHORT = ExpectedLoad(input_tokens=1, output_tokens=1)


def known(name: str) -> ModelFacts:
    match = published.find(name)
    assert match is not None
    return match


def test_at_one_stream_16_bit_weights_give_one_operation_a_byte() -> None:
    model = known("meta-textgeneration-llama-3-70b")
    where = instances.load().find("ml.p5.48xlarge")
    assert where is not None
    work = find_token_work(model, Recipe(), SHORT, where.device)
    assert work is not None
    parameters = model.parameters - model.vocabulary * model.hidden_size  # the embedding table is looked up
    assert work.flops == pytest.approx(2 * parameters, rel=0.01) == flops_per_token(model)
    assert work.bytes == pytest.approx(2 * parameters, rel=0.01) and work.intensity == pytest.approx(1, rel=0.01)
    assert work.bound == "memory" and work.device_balance == pytest.approx(295, rel=0.05)


def test_four_bits_read_a_quarter_and_make_as_many_operations() -> None:
    model = known("meta-textgeneration-llama-3-70b")
    plain, quantized = (find_token_work(model, chosen, SHORT, None) for chosen in (Recipe(), AWQ))
    assert plain is not None and quantized is not None
    assert quantized.flops == plain.flops and 3.4 < quantized.intensity / plain.intensity < 4
    assert quantized.bound is None and quantized.device_balance is None


@given(st.integers(1, 4096), st.integers(2, 64))
def test_more_streams_share_one_read_of_the_weights(streams: int, factor: int) -> None:
    """The intensity grows with the streams, never faster than they do, since each stream reads its own cache."""
    model = known("meta-textgeneration-llama-3-70b")
    few, many = (
        find_token_work(model, Recipe(), ExpectedLoad(concurrency=count), None) for count in (streams, streams * factor)
    )
    assert few is not None and many is not None
    assert few.intensity < many.intensity <= few.intensity * factor * (1 + 1e-9)


def test_a_compression_ratio_needs_both_sizes() -> None:
    assert compression_ratio(400, 100) == 4
    assert compression_ratio(None, 100) is compression_ratio(400, None) is None
