"""Metrics of a server that means harm, or that divides by zero."""

from __future__ import annotations

import pytest

from backend.domain.load import counters

NAME = "vllm:generation_tokens_total"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "many"])
def test_a_counter_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        counters.parse_counters(f"{NAME} {value}\n")


def test_a_line_that_never_ends_is_passed_over() -> None:
    """Matching it would take minutes: every brace begins a set of labels that may go on to the end."""
    assert counters.parse_counters(NAME + "{" * 4_000_000 + f"\n{NAME} 5\n") == {"generation_tokens": 5.0}
