"""Served probabilities against each other: a lower bound of the divergence, exact where all is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.limits.served_divergence import (
    TokenLogprobs,
    compare_windows,
    parse_prompt_logprobs,
    position_divergence,
)

weights = st.lists(st.floats(0.01, 1), min_size=5, max_size=5)


def shares(values: list[float]) -> list[float]:
    return [each / sum(values) for each in values]


def top_logprobs(probabilities: list[float], most: int) -> TokenLogprobs:
    ranked = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])[:most]
    return {str(token): math.log(probabilities[token]) for token in ranked}


@given(first=weights, second=weights, most=st.integers(1, 5))
def test_it_never_exceeds_the_divergence_over_the_whole_vocabulary(
    first: list[float], second: list[float], most: int
) -> None:
    p, q = shares(first), shares(second)
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    divergence = position_divergence(top_logprobs(p, most), top_logprobs(q, most))
    assert 0 <= divergence <= whole + 1e-6
    if most == 5:
        assert divergence == pytest.approx(whole, abs=1e-6)


def test_windows_give_means_and_intervals_and_the_first_position_nothing() -> None:
    near, far = {"1": math.log(0.6), "2": math.log(0.4)}, {"1": math.log(0.4), "2": math.log(0.6)}
    windows = compare_windows([[{}, near, near], [{}, near, near]], [[{}, near, near], [{}, near, far]])
    assert windows is not None and windows.positions == 4
    assert windows.same_top == 0.75 and windows.kl == pytest.approx(0.25 * 0.2 * math.log(1.5), rel=1e-3)
    assert windows.kl_ci95 and windows.kl_ci95[0] < windows.kl < windows.kl_ci95[1]
    assert compare_windows([[{}]], [[{}]]) is None


def test_what_a_server_tells_is_read_or_refused() -> None:
    position = {
        "5": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
        "9": {"logprob": -2.0, "rank": 2, "decoded_token": "b"},
    }
    assert parse_prompt_logprobs({"prompt_logprobs": [None, position]}) == [{}, {"5": -0.5, "9": -2.0}]
    for bad in ({}, {"prompt_logprobs": None}, {"prompt_logprobs": [["a"]]}):
        with pytest.raises(ValueError, match="prompt_logprobs"):
            parse_prompt_logprobs(bad)
