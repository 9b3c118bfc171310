"""What follows an attempt without success: again, aside or over, whatever came before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidOptions
from backend.domain.figures import span
from backend.domain.jobs.endings import (
    LONGEST_S,
    MOST_STRIKES,
    POLICIES,
    STRIKES,
    WORDS,
    Ending,
    decide_retry,
    strike_limit,
)
from backend.domain.jobs.terms import parse_seconds, parse_size

endings = st.sampled_from(Ending)
exit_codes = st.none() | st.integers(0, 20)


@given(st.lists(endings, max_size=40), exit_codes)
def test_a_job_is_tried_again_only_for_what_is_not_its_fault_and_not_for_ever(
    history: list, retries: int | None
) -> None:
    retried = strikes = 0
    for ending in history:
        retry = decide_retry(ending, retried=retried, strikes=strikes, retries=retries)
        assert retry.retry_s is None or (ending in POLICIES and not retry.aside and 0 < retry.retry_s <= LONGEST_S)
        assert retry.strikes == (strikes + 1 if ending in STRIKES else 0)
        if retry.retry_s is None:
            break
        retried, strikes = retried + 1, retry.strikes
    assert retried <= (max(policy.retries for policy in POLICIES.values()) if retries is None else retries)


@pytest.mark.parametrize("ending", [ending for ending in Ending if ending not in POLICIES])
def test_bad_input_and_what_a_person_asked_for_are_never_tried_again(ending: Ending) -> None:
    assert decide_retry(ending, retried=0, strikes=0, retries=20).retry_s is None


def test_each_try_waits_longer_than_the_one_before() -> None:
    waits = [decide_retry(Ending.DISK, retried=number, strikes=0).retry_s for number in range(5)]
    assert waits == [30.0, 120.0, 480.0, 1920.0, None]


@given(st.sampled_from(sorted(STRIKES)), exit_codes)
def test_a_job_that_always_ends_its_worker_is_put_aside_after_its_tries(ending: Ending, retries: int | None) -> None:
    for strikes in range(strike_limit(retries) - 1):
        assert not decide_retry(ending, retried=strikes, strikes=strikes, retries=retries).aside
    assert decide_retry(ending, retried=0, strikes=strike_limit(retries) - 1, retries=retries).aside
    assert strike_limit(None) == MOST_STRIKES


def test_another_ending_between_begins_the_count_anew() -> None:
    assert decide_retry(Ending.FAILED, retried=0, strikes=2).strikes == 0


def test_each_ending_has_words() -> None:
    assert set(WORDS) == set(Ending) and len(set(WORDS.values())) == len(WORDS)


@pytest.mark.parametrize(
    ("written", "value"), [("90", 90.0), ("90s", 90.0), ("30m", 1800.0), ("1.5 h", 5400.0), ("1d", 86400.0)]
)
def test_times_are_read_as_people_write_them(written: str, value: float) -> None:
    assert parse_seconds(written, "run_timeout_s") == value


@pytest.mark.parametrize("written", ["", "0", "-1", "5 weeks", "1e9", "9" * 50, "nan"])
def test_what_is_no_time_is_refused_in_a_sentence(written: str) -> None:
    with pytest.raises(InvalidOptions, match="no time such as 90s, 30m or 2h"):
        parse_seconds(written, "run_timeout_s")
    with pytest.raises(InvalidOptions, match="no size such as 8GB or 16GiB"):
        parse_size(written, "memory_bytes")


def test_sizes_and_spans() -> None:
    assert (parse_size("8GB", "m"), parse_size("1.5GiB", "m")) == (8 * 10**9, 3 << 29)
    assert [span(each) for each in (5.0, 90.0, 1800.0, 7200.0, 86400.0)] == ["5 s", "90 s", "30 min", "2 h", "24 h"]
