"""Guesses of repeated text: what they say, how likely they call it, and when they cease."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serving.vllm_plugin.whetstone_ngrams import (
    LONGEST,
    MOST,
    ON_CPU,
    RECENT,
    Guess,
    Looking,
    Price,
    Track,
    guess,
)

PRICE = Price(0.08, 0.0)


def _guessed(
    text: list[int], *, most: int = 4, least: float = 0.0, trust: float = 1.0, by_match: list[float] | None = None
) -> Guess:
    room = np.array([*text, *[0] * most], np.int32)
    ratio = np.array(by_match or [1.0] * (LONGEST + 1))
    result = tuple(np.empty(most, kind) for kind in (np.int64, np.float64, np.int64, np.float64))
    count = guess(room, len(text), most, least, trust, ratio, LONGEST, RECENT, *result)
    return Guess(*(each[:count].tolist() for each in result))


def _chances(text: list[int]) -> dict[int, float]:
    """Witten-Bell's interpolation, written out: from the longest n-gram to the shortest."""
    chances: Counter[int] = Counter()
    rest = 1.0
    places = [at for at in range(len(text) - 2, -1, -1) if text[at] == text[-1]][:RECENT]
    for order in range(LONGEST, 0, -1):
        own = [at for at in places if at + 1 >= order and text[at + 1 - order : at + 1] == text[len(text) - order :]]
        counts = Counter(text[at + 1] for at in own)
        for token, times in counts.items():
            chances[token] += rest * times / (len(own) + len(counts))
        rest *= len(counts) / (len(own) + len(counts)) if own else 1.0
    return dict(chances)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_each_token_is_the_likeliest_by_what_followed_the_last_ones_before(text: list[int]) -> None:
    result = _guessed(text)
    for token, odd in zip(result.tokens, result.odds, strict=True):
        chances = _chances(text)
        assert odd == pytest.approx(max(chances.values()))
        assert chances[token] == pytest.approx(odd)
        text = [*text, token]
    assert len(result.tokens) == 4 or not _chances(text)


def test_a_text_that_repeats_goes_on_as_before_and_one_that_does_not_is_left_alone() -> None:
    assert _guessed([5, 6, 7, 8, 5, 6]).tokens == [7, 8, 5, 6]
    assert _guessed([5, 6, 7, 8]).tokens == []
    assert _guessed([5]).tokens == []


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.floats(0, 1), st.floats(0.2, 1.5))
def test_a_guess_ends_where_the_chance_of_all_of_it_is_too_small(text: list[int], least: float, trust: float) -> None:
    whole, cut = _guessed(text), _guessed(text, least=least, trust=trust)
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    chances = np.cumprod([min(1.0, odd * trust) for odd in whole.odds])
    assert len(cut.tokens) == int((chances >= least).sum())
    assert cut.chances == pytest.approx(chances[: len(cut.tokens)])


def test_a_row_is_worth_the_more_certainty_the_more_requests_share_the_step() -> None:
    needed = [PRICE.worth(requests) for requests in (0, 1, 2, 4, 8, 16, 64, 1024)]
    assert needed == sorted(needed)
    assert needed[:2] == [PRICE.row, PRICE.row]
    assert needed[-1] == MOST
    assert Price(0.01, 0).worth(16) < 0.2  # where rows are cheap, many requests hardly matter


def test_what_was_expected_and_what_was_taken_are_counted_up_to_the_first_refused() -> None:
    track = Track(LONGEST)
    guessed = Guess([7, 8, 9], [0.5, 0.5, 0.5], [2, 3, 4], [0.5, 0.25, 0.125])
    assert track.learn(guessed, [7, 1]) == (1.0, 1.0)
    assert (track.accepted[2], track.accepted[3], track.accepted[4]) == (3.0, 2.0, 2.0)
    assert (track.expected[2], track.expected[3], track.expected[4]) == (2.5, 2.5, 2.0)
    assert track.learn(guessed, [7, 8, 9, 4])[1] == 3.0
    assert track.learn(Guess([], [], [], []), [3]) == (0.0, 0.0)


class _Server:
    """Rows of requests as vLLM shows them: each step every text grows by `said`."""

    def __init__(self, looking: Looking, texts: list[list[int]]) -> None:
        self.looking, self.texts = looking, texts

    def step(self, messages: list[list[int]]) -> list[list[int]]:
        self.texts = [text + own for text, own in zip(self.texts, messages, strict=True)]
        rows = np.zeros((len(messages), 128), np.int32)
        for row, text in enumerate(self.texts):
            rows[row, : len(text)] = text
        return self.looking.propose(messages, np.array([len(text) for text in self.texts]), rows)


def test_rows_whose_prompts_are_still_read_propose_nothing() -> None:
    server = _Server(Looking(4, PRICE), [[1, 2, 3, 1], [1, 2, 3, 1]])
    assert server.step([[2], []]) == [[3, 1, 2, 3], []]


def test_a_request_that_refuses_its_guesses_is_soon_asked_less_and_another_is_not() -> None:
    server = _Server(Looking(8, PRICE), [[1, 2, 3, 4, 1, 2, 3, 4]])
    first = len(server.step([[1]])[0])
    for wrong in range(10, 20):
        server.step([[wrong]])
        last = server.step([[1, 2]])[0]
    assert first == 8
    assert len(last) < first
    assert server.looking.track.by_match.max() <= 1.0


def test_what_a_request_taught_goes_with_it_into_another_row() -> None:
    looking = Looking(8, PRICE)
    texts = [[1, 2, 3, 4, 1, 2, 3], [9, 8, 7, 6]]
    server = _Server(looking, texts)
    server.step([[4], [5]])
    server.step([[77], [4]])
    taught = [each for each in looking.requests.values() if each.expected]
    server.texts.reverse()
    server.step([[3], [78]])
    again = [each for each in looking.requests.values() if each.expected]
    assert len(taught) == len(again) == 1
    assert again[0].expected >= taught[0].expected


def test_more_requests_make_shorter_guesses() -> None:
    text = [1, 2, 3, 4, 5, 1, 2, 9, 4, 5, 1, 2]
    lengths = [len(_Server(Looking(8, PRICE), [text] * requests).step([[3]] * requests)[0]) for requests in (1, 4, 32)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_few_guesses_among_many_requests_are_left_out_and_learned_from_all_the_same() -> None:
    text, other = [1, 2, 3, 4, 1, 2, 3], [[9, 10 + row] for row in range(15)]
    messages = [[4], *([50 + row] for row in range(15))]
    free, charged = (Looking(8, Price(0.01, request)) for request in (0.0, 0.05))
    assert len(_Server(free, [text, *other]).step(messages)[0]) == 8
    server = _Server(charged, [text, *other])
    assert server.step(messages) == [[] for _ in messages]
    server.step([[1], *([70 + row] for row in range(15))])
    assert max(each.accepted for each in charged.requests.values()) == 1.0
    assert len(_Server(Looking(8, ON_CPU), [text]).step([[4]])[0]) > 0
