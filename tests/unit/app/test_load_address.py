"""The planned load in addresses: written, read back, and read from the links of before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.load_bar import address
from backend.domain.limits.latency_limit import PERCENTILES
from backend.domain.planner.planned_load import PROFILES, PlannedLoad

USUAL = PlannedLoad()


@given(
    st.builds(
        PlannedLoad,
        input_tokens=st.integers(1, 1_000_000),
        output_tokens=st.integers(1, 1_000_000),
        workload=st.none() | st.text("abc-019", min_size=1, max_size=80),
        concurrency=st.integers(1, 4096),
        rate=st.none() | st.integers(1, 10**8).map(lambda thousandths: thousandths / 1000),
        max_ttft_ms=st.none() | st.integers(0, 10**9).map(float),
        percentile=st.sampled_from(PERCENTILES),
        max_kl=st.none() | st.integers(0, 2000).map(lambda number: number / 100),
        target=st.none() | st.sampled_from(["local", "ml.g5.12xlarge"]),
        region=st.none() | st.sampled_from(["us-west-2", "eu-west-1"]),
        discount=st.none() | st.integers(0, 99).map(lambda percent: percent / 100),
    )
)
def test_a_load_survives_its_address(load: PlannedLoad) -> None:
    assert address.parse(address.parameters(load)) == load


def test_the_usual_load_is_not_in_the_address_and_a_profile_is_by_name() -> None:
    assert address.parameters(USUAL) == {}
    code = USUAL.model_copy(update={"input_tokens": 1500, "output_tokens": 13})
    assert address.parameters(code) == {"load": "code"} and code.profile == "code"
    assert all(address.parse({"load": name}).profile == name for name in PROFILES)


@pytest.mark.parametrize(
    "words",
    [
        {"load": "poem"},
        {"load": "0-5"},
        {"load": "9" * 40 + "-1"},
        {"load_file": "x" * 81},
        {"load_users": "many"},
        {"load_users": "-3"},
        {"load_rate": "0"},
        {"load_users": "1e400"},
        {"slo_ttft": "nan"},
        {"slo_tpot": "-1"},
        {"slo_percentile": "p42"},
        {"load_kl": "inf"},
        {"load_discount": "4"},
        {"load_target": "x" * 900},
        {"load_region": "x" * 900},
        {"build_streams": ""},
    ],
)
def test_a_wrong_value_is_as_if_it_were_not_there(words: dict[str, str]) -> None:
    assert address.parse(words) == USUAL


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({"build_streams": "4"}, {"input_tokens": 512, "output_tokens": 128, "concurrency": 4}),
        ({"build_prompt": "100", "build_answer": "9"}, {"input_tokens": 100, "output_tokens": 9, "concurrency": 1}),
        ({"slo_ttft": "250", "slo_tpot": "12.5"}, {"max_ttft_ms": 250, "max_tpot_ms": 12.5}),
    ],
)
def test_a_link_of_before_has_its_load(words: dict[str, str], fields: dict[str, Any]) -> None:
    assert address.parse(words) == USUAL.model_copy(update=fields)
