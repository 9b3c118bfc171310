"""Agreement of answers: by hand and by properties."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.evaluation.answer_agreement import (
    answered_pairs,
    is_exact_match,
    mean_interval,
    measure_agreement,
    pooled_interval,
    token_f1,
)
from backend.domain.evaluation.document import Quality, Variant
from backend.domain.maths.intervals import wilson
from backend.present.words.measurements import answers_agreement
from backend.settings import ASSETS
from backend.worker.measuring.quality import compare_answers

WORDS = st.lists(st.sampled_from(["a", "b", "c", "def", "x=1"]), max_size=8).map(" ".join)


def test_by_hand() -> None:
    # 2 of 3 words shared on either side.
    assert token_f1("the cat sat", "the cat ran") == pytest.approx(2 / 3)
    # Precision 1/1, recall 1/4.
    assert token_f1("a b c d", "a") == pytest.approx(2 * 1 * 0.25 / 1.25)
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert token_f1("", "") == 1 and token_f1("", "a") == 0


def test_white_space_does_not_count_but_case_does() -> None:
    assert is_exact_match("a  b\n", "a b") and not is_exact_match("A b", "a b")


@given(WORDS, WORDS)
def test_it_is_symmetric_between_0_and_1_and_1_for_the_same_bag(first: str, second: str) -> None:
    result = token_f1(first, second)
    assert 0 <= result <= 1 and result == token_f1(second, first)
    assert (result == 1) == (sorted(first.split()) == sorted(second.split()))
    assert not is_exact_match(first, second) or result == 1


def test_means_over_the_pairs() -> None:
    agreement = measure_agreement([("a b", "a b"), ("c d", "c e")])
    assert (
        agreement is not None
        and agreement.exact_match == 0.5
        and agreement.token_f1 == pytest.approx(0.75)
        and agreement.answers == 2
    )
    assert agreement.exact_ci95 == wilson(1, 2)
    # Standard deviation sqrt(1/8), t = 12.706 with one degree of freedom: wider than a share can be.
    assert agreement.token_f1_ci95 == (0.0, 1.0)
    assert measure_agreement([]) is None


def test_a_request_that_failed_agrees_with_nothing() -> None:
    assert answered_pairs(["a", None, "", None], ["a", "b", "", None]) == [("a", "a"), ("", "")]
    assert measure_agreement(answered_pairs([None] * 3, [None] * 3)) is None
    with pytest.raises(ValueError, match="shorter"):
        answered_pairs(["a"], [])


def test_the_interval_of_a_mean_by_hand() -> None:
    # Mean 0.8, standard deviation 0.1, t = 4.3027 with two degrees of freedom: 0.8 -+ 4.3027 x 0.1 / sqrt(3).
    assert mean_interval([0.7, 0.8, 0.9]) == pytest.approx((0.8 - 0.248415, 1.0), abs=1e-5)
    assert mean_interval([0.5]) is mean_interval([1.0, 1.0, 1.0]) is None


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_the_interval_of_a_mean_of_shares_holds_it_and_is_one_of_shares(shares: list[float]) -> None:
    interval = mean_interval(shares)
    if interval is not None:
        assert 0 <= interval[0] <= fmean(shares) + 1e-12 and fmean(shares) - 1e-12 <= interval[1] <= 1


@given(st.floats(0, 1), st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_a_share_over_tokens_is_as_sure_as_its_answers_are_many(share: float, lengths: list[int]) -> None:
    """However many tokens: never narrower than as many answers of one length, and of one length just so."""
    low, high = pooled_interval(share, lengths)
    even = wilson(share * len(lengths), len(lengths))
    assert 0 <= low <= share + 1e-9 and share - 1e-9 <= high <= 1
    assert high - low >= even[1] - even[0] - 1e-9
    assert pooled_interval(share, [lengths[0]] * len(lengths)) == pytest.approx(even)


def test_a_share_of_no_tokens_says_nothing() -> None:
    assert pooled_interval(0.0, []) == pooled_interval(0.0, [0, 0]) == (0.0, 1.0)


SERVED = Variant(name="a", source="http://a", kind="url", url="http://a")


def test_only_what_both_answered_is_compared_and_counted() -> None:
    values = {0: ["a b", None, "c", "d"], 1: ["a b", "x", None, "e"], 2: [None] * 4}
    answers = compare_answers(SERVED, values, ["a b", "z", "c", "other"])
    assert answers[1] == {
        "answers": 2,
        "answers_asked": 4,
        "greedy_self": None,
        "exact_match": 0.5,
        "token_f1": 0.5,
        "exact_ci95": wilson(1, 2),
        "token_f1_ci95": (0.0, 1.0),
    }
    assert answers[2] == {"answers": 0, "answers_asked": 4, "greedy_self": None}, (
        "failures on either side are no agreement"
    )
    assert (answers[0]["answers"], answers[0]["exact_match"]) == (3, 2 / 3), (
        "the baseline against its own second answers"
    )
    assert all(Quality().model_copy(update=each).model_dump() for each in answers.values())


def test_tokens_are_compared_where_the_baseline_has_a_tokenizer() -> None:
    """Each answer is one draw, so of two, one of which parts at its first token, little is known."""
    model = SERVED.model_copy(update={"kind": "model", "url": None, "model_path": str(ASSETS / "starter" / "target")})
    answers = compare_answers(model, {0: ["def add", "x", "a"], 1: ["def add", "y", None]}, ["def add", "x", "b"])
    share, (low, high) = answers[1]["greedy_match"], answers[1]["greedy_ci95"]
    assert 0 < share < 1 and 0 < low < share < high < 1 and high - low > 0.5
    itself = answers[0]["greedy_match"]
    assert 0 < itself < 1 and answers[0]["greedy_ci95"][0] < itself, "it is no better than what it gives twice"
    assert answers[1]["greedy_self"] == itself and "greedy_self" not in answers[0]
    words = answers_agreement(Quality(**answers[1]))
    assert f"(the original against itself {itself:.1%})" in words


def test_a_baseline_that_answers_nothing_gives_no_figures() -> None:
    none = {"answers": 0, "answers_asked": 2}
    silent = compare_answers(SERVED, {0: [None, None], 1: ["a", "b"]}, [None, None])
    assert silent == {0: none, 1: {**none, "greedy_self": None}}
    assert compare_answers(SERVED, {1: ["a"]}, None) == {}
