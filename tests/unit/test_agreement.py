"""Agreement of answers: by hand and by properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.agreement import agreement, exact, token_f1

WORDS = st.lists(st.sampled_from(["a", "b", "c", "def", "x=1"]), max_size=8).map(" ".join)


def test_by_hand() -> None:
    # 2 of 3 words shared on either side.
    assert token_f1("the cat sat", "the cat ran") == pytest.approx(2 / 3)
    # Precision 1/1, recall 1/4.
    assert token_f1("a b c d", "a") == pytest.approx(2 * 1 * 0.25 / 1.25)
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert token_f1("", "") == 1 and token_f1("", "a") == 0


def test_white_space_does_not_count_but_case_does() -> None:
    assert exact("a  b\n", "a b") and not exact("A b", "a b")


@given(WORDS, WORDS)
def test_it_is_symmetric_between_0_and_1_and_1_for_the_same_bag(first: str, second: str) -> None:
    found = token_f1(first, second)
    assert 0 <= found <= 1 and found == token_f1(second, first)
    assert (found == 1) == (sorted(first.split()) == sorted(second.split()))
    assert not exact(first, second) or found == 1


def test_means_over_the_pairs() -> None:
    found = agreement(["a b", "c d"], ["a b", "c e"])
    assert found is not None and found.exact_match == 0.5 and found.token_f1 == pytest.approx(0.75) and found.answers == 2
    assert agreement([], []) is None
    with pytest.raises(ValueError, match="shorter"):
        agreement(["a"], [])
