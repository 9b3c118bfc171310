"""Built-in workloads: seeded prompts of a chosen length by a tokenizer that the caller counts with. Pure.

The same name, seed, limits and counter give the same bytes. Lengths are drawn by strata (one from each of n equal shares of
the distribution, in random order), so that the mean of few prompts is that of the distribution.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, takewhile
from typing import Any

from backend.domain.errors import InvalidWorkload
from backend.domain.workload import passages

Count = Callable[[Sequence[str]], list[int]]
"""Texts -> tokens of each, with those a server adds."""
FITTING_ROUNDS = 5
QA_LOW, QA_HIGH, QA_MEAN = 500, 1000, 622
"""The announcement's prompts: 500 to 1,000 tokens, 622 in the mean (Amazon SageMaker inference optimization toolkit, 2024)."""


@dataclass(frozen=True)
class Kind:
    """`low` to `high` tokens a prompt; `answer` is its max_tokens; `about` for people."""

    about: str
    prompts: int
    low: int
    high: int
    answer: int
    mean: int | None = None
    """None spreads the lengths evenly."""


KINDS = {
    "question-answering": Kind("a question on a passage, as in the announcement", 256, QA_LOW, QA_HIGH, 250, QA_MEAN),
    "summarization": Kind("a text to be summarized", 128, 1000, 3000, 150),
    "chat": Kind("conversations of three to six turns; each answer is part of the next prompt", 128, 20, 120, 150),
    "code-completion": Kind("a Python module and a function to be completed", 128, 200, 1000, 64),
    "long-context": Kind("a question on a text that fills most of the context", 32, 8000, 8000, 200),
    "shared-prefix": Kind("eight long instructions, each shared by many short questions", 128, 48, 160, 100),
}
PREFIX_TOKENS, PREFIXES = 768, 8
LONGEST = 32_768
LEAST_TURNS = 3
"""Of a generated conversation."""
SPARE = 16
"""Tokens left free of a context, for what a chat template adds."""


def generate(name: str, count: Count, *, seed: int = 0, context: int | None = None, prompts: int = 0) -> bytes:
    """The JSONL of a built-in workload, as often twice as long as it takes for so many `prompts`. `context`: the model's, in
    tokens, None where it is not known.

    Raises InvalidWorkload where the context is too short for it.
    """
    kind = _fitted(name, KINDS[name], context)
    while kind.prompts < prompts:
        kind = replace(kind, prompts=2 * kind.prompts)
    chance = random.Random(f"{name}-{seed}")
    makers = {
        "chat": _chat,
        "code-completion": _code,
        "shared-prefix": _shared,
        "summarization": lambda *given: _prose("Summarize the following text in three sentences.", *given),
    }
    rows = makers.get(name, _questions)(kind, chance, count)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def lengths(kind: Kind, chance: random.Random) -> list[int]:
    """Tokens of each prompt, drawn by strata; even from low to high, or exponential between them with the kind's mean."""
    shares = [(number + 0.5) / kind.prompts for number in range(kind.prompts)]
    chance.shuffle(shares)
    width = kind.high - kind.low
    if kind.mean is None or width == 0:
        return [kind.low + round(share * width) for share in shares]
    rate = _rate((kind.mean - kind.low) / width)
    return [kind.low + round(width * -math.log1p(-share * -math.expm1(-rate)) / rate) for share in shares]


def _rate(mean: float) -> float:
    """r of the exponential distribution cut to 0..1 whose mean, 1 / r - 1 / (e^r - 1), is `mean` (below one half)."""
    low, high = 1e-6, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 / middle - 1 / math.expm1(min(middle, 700)) > mean else (low, middle)
    return (low + high) / 2


def _fitted(name: str, kind: Kind, context: int | None) -> Kind:
    """Within the context: long-context fills three quarters of it, and the others must fit whole or get shorter."""
    if context is None:
        return kind
    most = context - kind.answer - SPARE
    if name == "long-context":
        size = min(LONGEST, int(0.75 * most))
        high, low = size, size
    elif name == "chat":
        high, low = (kind.high, kind.low) if 6 * (kind.high + kind.answer + SPARE) <= context else (0, kind.low)
    else:
        fixed = PREFIX_TOKENS if name == "shared-prefix" else 0
        high, low = min(kind.high, most - fixed), kind.low
    if high < low or high < 1:
        raise InvalidWorkload(f"The workload {name} does not fit into a context of {context:,} tokens: choose another.")
    mean = kind.mean if high == kind.high else None
    return Kind(kind.about, kind.prompts, low, high, kind.answer, mean)


def _questions(kind: Kind, chance: random.Random, count: Count) -> list[dict[str, Any]]:
    events = [passages.event(chance) for _ in range(kind.prompts)]
    heads = [f"Read the passage and answer the question.\n\n{sentence}" for sentence, _ in events]
    tails = [f"\n\nQuestion: {asked}\nAnswer:" for _, asked in events]
    return _rows(kind, _fill(heads, tails, lengths(kind, chance), chance, count))


def _prose(task: str, kind: Kind, chance: random.Random, count: Count) -> list[dict[str, Any]]:
    heads = [f"{task}\n\n{passages.event(chance)[0]}" for _ in range(kind.prompts)]
    return _rows(kind, _fill(heads, ["\n\nSummary:"] * kind.prompts, lengths(kind, chance), chance, count))


def _code(kind: Kind, chance: random.Random, count: Count) -> list[dict[str, Any]]:
    """Whole functions as far as they fit, then the beginning of another."""
    wanted = lengths(kind, chance)
    sources = [passages.functions(random.Random(chance.random())) for _ in wanted]
    blocks = [[*islice(source, 2 + size // 40), passages.signature(chance)] for source, size in zip(sources, wanted, strict=True)]
    sizes = iter(count([block for own in blocks for block in own]))  # counted at once: each counting reads the tokenizer anew
    return _rows(kind, [_first(own, [next(sizes) for _ in own], size) for own, size in zip(blocks, wanted, strict=True)])


def _first(blocks: Sequence[str], sizes: Sequence[int], wanted: int) -> str:
    """As many blocks from the beginning as fit together with the last one."""
    room = wanted - sizes[-1]
    taken = takewhile(lambda pair: pair[1] <= room, zip(blocks[:-1], accumulate(sizes[:-1]), strict=True))
    return "".join(block for block, _ in taken) + blocks[-1]


def _chat(kind: Kind, chance: random.Random, count: Count) -> list[dict[str, Any]]:
    turns = [chance.randint(LEAST_TURNS, 6) for _ in range(kind.prompts)]
    sizes = [chance.randint(kind.low, kind.high) for _ in range(sum(turns))]
    texts = iter(_fill(["Tell me more about this."] * len(sizes), [" What do you think?"] * len(sizes), sizes, chance, count))
    system = "You are a helpful assistant. Answer briefly."
    return [{"turns": [next(texts) for _ in range(n)], "system": system, "max_tokens": kind.answer} for n in turns]


def _shared(kind: Kind, chance: random.Random, count: Count) -> list[dict[str, Any]]:
    prefixes = _fill(["Follow these notes."] * PREFIXES, ["\n\n"] * PREFIXES, [PREFIX_TOKENS] * PREFIXES, chance, count)
    asked = [passages.event(chance)[1] for _ in range(kind.prompts)]
    own = _fill(
        ["Consider this as well."] * kind.prompts, [f" {question}" for question in asked], lengths(kind, chance), chance, count
    )
    return _rows(kind, [prefixes[number % PREFIXES] + text for number, text in enumerate(own)])


def _rows(kind: Kind, prompts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "max_tokens": kind.answer} for prompt in prompts]


def _fill(heads: Sequence[str], tails: Sequence[str], wanted: Sequence[int], chance: random.Random, count: Count) -> list[str]:
    """Texts of the wanted tokens, or the fewest there can be: head, as many words of prose as it takes, tail.

    The words are found by counting and correcting; what is left after some rounds is a token or two.
    """
    words = [_Words(chance) for _ in wanted]
    sizes = [size // 2 for size in wanted]
    best: list[tuple[int, str]] = [(10**9, "")] * len(wanted)
    for _ in range(FITTING_ROUNDS):
        texts = [head + word.first(size) + tail for head, word, size, tail in zip(heads, words, sizes, tails, strict=True)]
        for number, (text, tokens) in enumerate(zip(texts, count(texts), strict=True)):
            missing = wanted[number] - tokens
            best[number] = min(best[number], (abs(missing), text), key=lambda pair: pair[0])
            per_token = max(0.05, sizes[number] / max(1, tokens))
            step = round(missing * per_token) or (missing > 0) - (missing < 0)
            sizes[number] = max(0, sizes[number] + step)
    return [text for _, text in best]


class _Words:
    """The first so many words of an endless text."""

    def __init__(self, chance: random.Random) -> None:
        self._more: Iterator[str] = passages.sentences(random.Random(chance.random()))
        self._words: list[str] = []

    def first(self, number: int) -> str:
        while len(self._words) < number:
            self._words += next(self._more).split(" ")
        return (" " + " ".join(self._words[:number])).rstrip(".,") + "." if number else ""
