"""Adaptive n-grams: a proposer for vLLM (`custom_class`) that knows how likely its guesses are, and proposes only what
pays.

Prompt lookup (Saxena 2023) proposes what followed the longest n-gram that repeats, always `k` tokens. Each of them is a
row that the target computes, accepted or not: on a processor, or with many requests on any hardware, most rows of a
rare repetition are wasted. Here every proposed token has a probability, and a guess ends where the next token is not
worth its row:

- `guess`: the next token's distribution is that of what followed the last n tokens before, over all n from LONGEST down
to 1, by
  Witten and Bell's interpolation (Bell, Cleary and Witten 1990, method C, for n-grams: Chen and Goodman 1998, section
  2.6): an order that was seen s times with d different followers weighs s / (s + d) of what the longer ones left.
- `Track`: what of it a target takes is learned while it answers, by request (a sampled answer takes less than a greedy
one) and
  by the length of the repetition over all requests.
- `Price.worth`: a row is worth computing if its token is accepted with at least that probability. So guesses get
shorter where
  more requests run together.
- `Price.pays`: a step in which anything is verified costs more than its rows, so few guesses among many requests are
left out.

Which tokens are accepted decides vLLM: answers are what they are without. Runs under the serve environment's
interpreter; imports nothing of Whetstone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the function compiled by numba, which comes with vLLM, or the slower function itself without numba."""
    try:
        from numba import njit
    except ImportError:
        return function
    machine_code: Function = njit(function)
    return machine_code


Row = npt.NDArray[Any]
LONGEST = 6
"""Tokens of the longest n-gram."""
RECENT = 64
"""Places that are looked at, the latest, where the last token stood before."""
WINDOW = 16_384
"""Tokens of a text that are looked through, its last."""
MOST = 0.95
"""No guess needs to be surer."""
BELIEVED, COUNTED = 4.0, 2.0
"""Accepted tokens as predicted that a request, and a length of repetition, begin with."""
REQUESTS = 4096
"""Whose learning is kept."""


class Price(NamedTuple):
    """The cost of verifying, in steps over one row."""

    row: float
    """One more row of a step."""
    request: float
    """The fixed cost of verifying anything in a step, for each request in it."""

    def token(self, requests: int) -> float:
        """Return the worth of a token: its share of a step, which over n rows costs 1 + row x (n - 1)."""
        return (1 + self.row * (requests - 1)) / requests

    def worth(self, requests: int) -> float:
        """The least chance of being accepted with which one more row pays."""
        return min(MOST, self.row / self.token(max(1, requests)))

    def pays(self, expected: float, rows: int, requests: int) -> bool:
        """Tell whether a step gains by `rows` more rows, of which `expected` tokens will be accepted."""
        return expected * self.token(requests) > self.row * rows + self.request * requests


ON_CPU, ON_GPU = Price(0.08, 0.02), Price(0.01, 0.002)
"""Measured on a processor with a margin (decision 0038); on a GPU, whose steps wait for memory, an assumption."""


@compiled
def places(
    text: Row, last: int, longest: int, recent: int, kinds: Row, follow: Row, match: Row, furthest: Row
) -> tuple[int, int]:
    """Count the earlier places of `text[last]`, the latest first, and the different tokens that followed there.

    Fill `kinds` with those tokens and `furthest` with the longest repetition before each. For each place, `follow`
    gets the index of its token in `kinds` and `match` the length of its repetition.
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


@compiled
def interpolated(follow: Row, match: Row, longest: int, different: int) -> Row:
    """[different]: the chance of each token, over all orders."""
    chances, rest = np.zeros(different), 1.0
    for order in range(longest, 0, -1):
        counts = np.zeros(different)
        for place in range(len(follow)):
            if match[place] >= order:
                counts[follow[place]] += 1
        total, different_tokens = counts.sum(), (counts > 0).sum()
        if total > 0:
            chances += rest * counts / (total + different_tokens)
            rest *= different_tokens / (total + different_tokens)
    return chances


@compiled
def guess(
    text: Row,
    length: int,
    most: int,
    least: float,
    trust: float,
    by_match: Row,
    longest: int,
    recent: int,
    tokens: Row,
    odds: Row,
    matched: Row,
    chances: Row,
) -> int:
    """Fill `tokens`, `odds`, `matched` and `chances` [most] with what may follow `text[:length]`; how many there are.

    A guess ends where the chance that all of it is accepted, `chances`, falls below `least`: the product of odds, each
    times `trust` and `by_match` [longest + 1] of the longest repetition that says so. `text` has room for `most` more.
    """
    follow, match = np.empty(recent, np.int64), np.empty(recent, np.int64)
    kinds, furthest = np.empty(recent, np.int64), np.empty(recent, np.int64)
    count, chance = 0, 1.0
    while count < most:
        repeats, different = places(text, length + count - 1, longest, recent, kinds, follow, match, furthest)
        if repeats == 0:
            break
        likely = interpolated(follow[:repeats], match[:repeats], longest, different)
        best = likely.argmax()
        chance *= min(1.0, likely[best] * by_match[furthest[best]] * trust)
        if chance < least:
            break
        tokens[count], odds[count], matched[count], chances[count] = kinds[best], likely[best], furthest[best], chance
        text[length + count] = kinds[best]
        count += 1
    return count


class Guess(NamedTuple):
    tokens: list[int]
    odds: list[float]
    """Chances counted in the text, before anything learned."""
    matched: list[int]
    chances: list[float]
    """Chances that a token and all before it are accepted."""


class Track:
    """Counts of guessed tokens that a target was expected to accept, and of those that it accepted."""

    def __init__(self, longest: int) -> None:
        self.expected, self.accepted = np.full(longest + 1, COUNTED), np.full(longest + 1, COUNTED)

    @property
    def by_match(self) -> Row:
        """[longest + 1]: by the length of the repetition."""
        ratio: Row = self.accepted / self.expected
        return ratio

    def learn(self, guessed: Guess, sampled: list[int]) -> tuple[float, float]:
        """Learn from `sampled`; return the tokens expected and accepted, up to the first that was refused."""
        ratio = self.by_match
        expected = accepted = 0.0
        for token, odd, matched, own in zip(guessed.tokens, guessed.odds, guessed.matched, sampled, strict=False):
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


NOTHING = Request(Guess([], [], [], []), 0.0, 0.0)


class Looking:
    """All of it but vLLM."""

    def __init__(self, most: int, price: Price) -> None:
        self.most, self.price = most, price
        self.track = Track(LONGEST)
        self.requests: OrderedDict[int, Request] = OrderedDict()
        """Requests by a hash of their text, since vLLM does not tell a custom class which request a row belongs to."""
        self.text = np.empty(WINDOW + most, np.int32)
        self.buffers = tuple(np.empty(most, kind) for kind in (np.int64, np.float64, np.int64, np.float64))

    def propose(self, sampled: list[list[int]], lengths: Row, texts: Row) -> list[list[int]]:
        """Tokens to verify for each row; none for those that got no token in this step, whose prompts are still
        read."""
        requests = sum(map(bool, sampled))
        least = self.price.worth(requests)
        guesses = [
            self._row(texts[row, : int(lengths[row])], own, least) if own else NOTHING.guess
            for row, own in enumerate(sampled)
        ]
        expected, rows = sum(sum(one.chances) for one in guesses), sum(len(one.tokens) for one in guesses)
        if not rows or not self.price.pays(expected, rows, requests):
            return [[] for _ in sampled]
        return [one.tokens for one in guesses]

    def _row(self, text: Row, sampled: list[int], least: float) -> Guess:
        """Remembered, and learned from whether or not it is proposed."""
        known = self.requests.pop(hash(text[: len(text) - len(sampled)].tobytes()), NOTHING)
        expected, accepted = self.track.learn(known.guess, sampled)
        request = Request(NOTHING.guess, known.expected + expected, known.accepted + accepted)
        length = min(len(text), WINDOW)
        self.text[:length] = text[len(text) - length :]
        trusted = self.track.by_match
        count = guess(self.text, length, self.most, least, request.trust, trusted, LONGEST, RECENT, *self.buffers)
        proposal = Guess(*(buffer[:count].tolist() for buffer in self.buffers))
        self.requests[hash(text.tobytes())] = request._replace(guess=proposal)
        if len(self.requests) > REQUESTS:
            self.requests.popitem(last=False)
        return proposal


class AdaptiveNgrams:
    """The proposer as vLLM 0.32 calls a custom class (vllm/v1/spec_decode/custom_class_proposer.py)."""

    def __init__(self, vllm_config: Any) -> None:
        from vllm.platforms import current_platform

        most = vllm_config.speculative_config.num_speculative_tokens
        self.looking = Looking(most, ON_CPU if current_platform.is_cpu() else ON_GPU)
        self.propose([[1]], np.array([4]), np.array([[1, 2, 1, 2]], np.int32))  # compiles
        self.looking.requests.clear()

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Asked of every proposer on a processor; there is none."""

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Row, token_ids_cpu: Row, **options: Any
    ) -> list[list[int]]:
        return self.looking.propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
