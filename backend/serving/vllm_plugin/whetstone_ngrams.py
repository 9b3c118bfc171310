"""Adaptive n-grams: a proposer for vLLM (`custom_class`) that knows how likely its guesses are, and proposes only what pays.

Prompt lookup (Saxena 2023) proposes what followed the longest n-gram that repeats, always `k` tokens. Each of them is a row that
the target computes, accepted or not: on a processor, or with many requests on any hardware, most rows of a rare repetition are
wasted. Here every proposed token has a probability, and a guess ends where the next token is not worth its row:

- `guess`: the next token's distribution is that of what followed the last n tokens before, over all n from LONGEST down to 1, by
  Witten and Bell's interpolation (Bell, Cleary and Witten 1990, method C, for n-grams: Chen and Goodman 1998, section 2.6): an
  order that was seen s times with d different followers weighs s / (s + d) of what the longer ones left.
- `Track`: what of it a target takes is learned while it answers, by request (a sampled answer takes less than a greedy one) and
  by the length of the repetition over all requests.
- `worth`: a row is worth computing if its token is accepted with at least that probability. So guesses get shorter where more
  requests run together, and cease where nothing is to be gained.

Which tokens are accepted decides vLLM: answers are what they are without. Runs under the serve environment's interpreter; imports
nothing of Whetstone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

try:
    from numba import njit  # comes with vLLM
except ImportError:  # the same without being compiled

    def njit(function: Any) -> Any:
        return function


Row = npt.NDArray[Any]
LONGEST = 6
"""Tokens of the longest n-gram."""
RECENT = 64
"""Places that are looked at, the latest, where the last token stood before."""
WINDOW = 16_384
"""Tokens of a text that are looked through, its last."""
ROW, ROW_ON_GPU = 0.08, 0.01
"""What one more row costs of a step with one: 0.06 measured on a processor (decision 0038), with a margin for what looking
up takes; on a GPU, whose steps wait for memory, an assumption."""
MOST = 0.95
"""No guess needs to be surer."""
BELIEVED, COUNTED = 4.0, 2.0
"""Accepted tokens as predicted that a request, and a length of repetition, begin with."""
REQUESTS = 4096
"""Whose learning is kept."""


def worth(price: float, requests: int) -> float:
    """The least chance of being accepted with which one more row pays, where `requests` get a token in each step.

    A step over n rows costs 1 + price x (n - 1) steps over one, one more row `price`, and a token is worth an n-th of the step.
    """
    rows = max(1, requests)
    return min(MOST, price * rows / (1 + price * (rows - 1)))


@njit
def places(
    text: Row, last: int, longest: int, recent: int, kinds: Row, follow: Row, match: Row, furthest: Row
) -> tuple[int, int]:  # fmt: skip
    """Where `text[last]` stood before, the latest first: how many places, and how many different tokens followed.

    `kinds` are those tokens and `furthest` the longest repetition before each; `follow` and `match` of each place: which, and how
    long a repetition.
    """
    count, different = 0, 0
    at = last - 1
    while at >= 0 and count < recent:
        if text[at] == text[last]:
            same = 1
            while same < longest and same <= at and text[at - same] == text[last - same]:
                same += 1
            kind = 0
            while kind < different and kinds[kind] != text[at + 1]:
                kind += 1
            if kind == different:
                kinds[kind], furthest[kind] = text[at + 1], 0
                different += 1
            follow[count], match[count] = kind, same
            furthest[kind] = max(furthest[kind], same)
            count += 1
        at -= 1
    return count, different


@njit
def interpolated(follow: Row, match: Row, longest: int, different: int) -> Row:
    """[different]: the chance of each token, over all orders."""
    chances, rest = np.zeros(different), 1.0
    for order in range(longest, 0, -1):
        counts = np.zeros(different)
        for place in range(len(follow)):
            if match[place] >= order:
                counts[follow[place]] += 1
        total, seen = counts.sum(), (counts > 0).sum()
        if total > 0:
            chances += rest * counts / (total + seen)
            rest *= seen / (total + seen)
    return chances


@njit
def guess(
    text: Row, length: int, most: int, least: float, trust: float, by_match: Row, longest: int, recent: int,
    tokens: Row, odds: Row, matched: Row,
) -> int:  # fmt: skip
    """Fill `tokens`, `odds` and `matched` [most] with what may follow `text[:length]`; how many there are.

    A guess ends where the chance that all of it is accepted falls below `least`: the product of odds, each times `trust` and
    `by_match` [longest + 1] of the longest repetition that says so. `text` has room for `most` more.
    """
    follow, match = np.empty(recent, np.int64), np.empty(recent, np.int64)
    kinds, furthest = np.empty(recent, np.int64), np.empty(recent, np.int64)
    found, chance = 0, 1.0
    while found < most:
        count, different = places(text, length + found - 1, longest, recent, kinds, follow, match, furthest)
        if count == 0:
            break
        chances = interpolated(follow[:count], match[:count], longest, different)
        best = chances.argmax()
        chance *= min(1.0, chances[best] * by_match[furthest[best]] * trust)
        if chance < least:
            break
        tokens[found], odds[found], matched[found] = kinds[best], chances[best], furthest[best]
        text[length + found] = kinds[best]
        found += 1
    return found


class Guess(NamedTuple):
    tokens: list[int]
    odds: list[float]
    """As counted in the text, before anything learned."""
    matched: list[int]


class Track:
    """What a target took of guesses: tokens that were expected to be accepted, and that were."""

    def __init__(self, longest: int) -> None:
        self.expected, self.accepted = np.full(longest + 1, COUNTED), np.full(longest + 1, COUNTED)

    @property
    def by_match(self) -> Row:
        """[longest + 1]: by the length of the repetition."""
        return self.accepted / self.expected

    def learn(self, guessed: Guess, said: list[int]) -> tuple[float, float]:
        """Of `said`, what followed: tokens expected and accepted, up to the first that was refused."""
        ratio = self.by_match
        expected = accepted = 0.0
        for token, odd, matched, own in zip(guessed.tokens, guessed.odds, guessed.matched, said, strict=False):
            self.expected[matched] += odd
            expected += odd * ratio[matched]
            if token != own:
                break
            self.accepted[matched] += 1
            accepted += 1
        return expected, accepted


class Request(NamedTuple):
    guess: Guess
    expected: float
    accepted: float

    @property
    def trust(self) -> float:
        return (self.accepted + BELIEVED) / (self.expected + BELIEVED)


NOTHING = Request(Guess([], [], []), 0.0, 0.0)


class Looking:
    """All of it but vLLM."""

    def __init__(self, most: int, price: float) -> None:
        self.most, self.price = most, price
        self.track = Track(LONGEST)
        self.requests: OrderedDict[int, Request] = OrderedDict()
        """By the text so far, since a class of one's own is not told which request a row is of."""
        self.text = np.empty(WINDOW + most, np.int32)
        self.found = np.empty(most, np.int64), np.empty(most, np.float64), np.empty(most, np.int64)

    def propose(self, said: list[list[int]], lengths: Row, texts: Row) -> list[list[int]]:
        """Tokens to verify for each row; none for those that got no token in this step, whose prompts are still read."""
        least = worth(self.price, sum(map(bool, said)))
        return [
            self._row(texts[row, : int(lengths[row])], own, least) if own else [] for row, own in enumerate(said)
        ]  # fmt: skip

    def _row(self, text: Row, said: list[int], least: float) -> list[int]:
        known = self.requests.pop(hash(text[: len(text) - len(said)].tobytes()), NOTHING)
        expected, accepted = self.track.learn(known.guess, said)
        request = Request(NOTHING.guess, known.expected + expected, known.accepted + accepted)
        length = min(len(text), WINDOW)
        self.text[:length] = text[len(text) - length :]
        trusted = self.track.by_match
        count = guess(self.text, length, self.most, least, request.trust, trusted, LONGEST, RECENT, *self.found)
        made = Guess(*(each[:count].tolist() for each in self.found))
        self.requests[hash(text.tobytes())] = request._replace(guess=made)
        if len(self.requests) > REQUESTS:
            self.requests.popitem(last=False)
        return made.tokens


class AdaptiveNgrams:
    """As vLLM 0.32 calls a class of one's own (v1/spec_decode/custom_class_proposer.py)."""

    def __init__(self, vllm_config: Any) -> None:
        from vllm.platforms import current_platform

        most = vllm_config.speculative_config.num_speculative_tokens
        self.looking = Looking(most, ROW if current_platform.is_cpu() else ROW_ON_GPU)
        self.propose([[1]], np.array([4]), np.array([[1, 2, 1, 2]], np.int32))  # compiles
        self.looking.requests.clear()

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Asked of every proposer on a processor; there is none."""

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Row, token_ids_cpu: Row, **options: Any
    ) -> list[list[int]]:  # fmt: skip
        return self.looking.propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
