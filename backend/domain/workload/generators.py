"""Built-in workloads: seeded prompts of a chosen length by a tokenizer that the caller counts with. Pure.

The same name, seed, limits and counter give the same bytes. Lengths are drawn by strata (one from each of n equal
shares of the distribution, in random order), so that the mean of few prompts is that of the distribution.
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
from backend.domain.workload import generated_text, size_limits

TokenCounter = Callable[[Sequence[str]], list[int]]
"""Texts -> tokens of each, with those a server adds."""
FITTING_ROUNDS = 5
FITTED_AT_ONCE = 512
"""Texts that are held and counted together, so that memory does not grow with their number."""
QA_LOW, QA_HIGH, QA_MEAN = 500, 1000, 622
"""The announcement's prompts: 500 to 1,000 tokens, 622 in the mean (Amazon SageMaker inference optimization toolkit,
2024)."""


@dataclass(frozen=True)
class WorkloadKind:
    """`low` to `high` tokens a prompt; `answer` is its max_tokens, 0 where the load says it; `about` for people."""

    about: str
    prompts: int
    low: int
    high: int
    answer: int
    mean: int | None = None
    """None spreads the lengths evenly."""


WORKLOAD_KINDS = {
    "question-answering": WorkloadKind(
        "a question on a passage, as in the announcement", 256, QA_LOW, QA_HIGH, 250, QA_MEAN
    ),
    "summarization": WorkloadKind("a text to be summarized", 128, 1000, 3000, 150),
    "chat": WorkloadKind(
        "conversations of three to six turns; each answer is part of the next prompt", 128, 20, 120, 150
    ),
    "code-completion": WorkloadKind("a Python module and a function to be completed", 128, 200, 1000, 64),
    "long-context": WorkloadKind("a question on a text that fills most of the context", 32, 8000, 8000, 200),
    "shared-prefix": WorkloadKind("eight long instructions, each shared by many short questions", 128, 48, 160, 100),
    "short-questions": WorkloadKind(
        "a question on a short passage; answers as long as the load asks", 128, 128, 256, 0
    ),
}
LONGER_WORKLOAD = "short-questions"
"""Workload that is used where none was named and the bundled one is too short."""
PREFIX_TOKENS, PREFIXES = 768, 8
LONGEST = 32_768
LEAST_TURNS, MOST_TURNS = 3, 6
"""Fewest and most turns of a generated conversation."""
SPARE = 16
"""Tokens left free of a context, for what a chat template adds."""


def generate(name: str, count: TokenCounter, *, seed: int = 0, context: int | None = None, prompts: int = 0) -> bytes:
    """The JSONL of a built-in workload, as often twice as long as it takes for so many `prompts`. `context`: the
    model's, in tokens, None where it is not known.

    Raises InvalidWorkload where the context is too short for it, and where it would be larger than may be made.
    """
    kind = plan_workload(name, context=context, prompts=prompts)
    chance = random.Random(f"{name}-{seed}")
    makers = {
        "chat": _chat,
        "code-completion": _code,
        "shared-prefix": _shared,
        "summarization": lambda *arguments: _prose("Summarize the following text in three sentences.", *arguments),
    }
    rows = makers.get(name, _questions)(kind, chance, count)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def plan_workload(name: str, *, context: int | None = None, prompts: int = 0) -> WorkloadKind:
    """Return the number and lengths of the prompts that `generate` would make, without making any. Raises alike."""
    return _long_enough(name, _fitted(name, WORKLOAD_KINDS[name], context), prompts)


def _long_enough(name: str, kind: WorkloadKind, prompts: int) -> WorkloadKind:
    """With twice the prompts as often as it takes, or with exactly so many where twice would be too large.

    Raises InvalidWorkload where even these are too large.
    """
    mean_tokens = _mean_tokens(name, kind)
    number = kind.prompts
    while number < prompts:
        number *= 2
    if not size_limits.fits_limits(number, number * mean_tokens):
        number = max(kind.prompts, prompts)
    size_limits.require_generated_size(name, number, number * mean_tokens)
    return replace(kind, prompts=number)


def _mean_tokens(name: str, kind: WorkloadKind) -> float:
    """Tokens of a line, in the mean."""
    if name == "chat":
        return (kind.low + kind.high) / 2 * (LEAST_TURNS + MOST_TURNS) / 2
    own = (kind.low + kind.high) / 2 if kind.mean is None else kind.mean
    return own + (PREFIX_TOKENS if name == "shared-prefix" else 0)


def prompt_lengths(kind: WorkloadKind, chance: random.Random) -> list[int]:
    """Tokens of each prompt, drawn by strata; even from low to high, or exponential between them with the kind's
    mean."""
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


def _fitted(name: str, kind: WorkloadKind, context: int | None) -> WorkloadKind:
    """Within the context: long-context fills three quarters of it, and the others must fit whole or get shorter."""
    if context is None:
        return kind
    # 1. The lengths that fit, by kind.
    most = context - kind.answer - SPARE
    if name == "long-context":
        size = min(LONGEST, int(0.75 * most))
        high, low = size, size
    elif name == "chat":
        fits = MOST_TURNS * (kind.high + kind.answer + SPARE) <= context
        high, low = kind.high if fits else 0, kind.low
    else:
        fixed = PREFIX_TOKENS if name == "shared-prefix" else 0
        high, low = min(kind.high, most - fixed), kind.low
    # 2. The same kind with them; the mean holds only where nothing was cut.
    if high < low or high < 1:
        raise InvalidWorkload(f"The workload {name} does not fit into a context of {context:,} tokens: choose another.")
    mean = kind.mean if high == kind.high else None
    return WorkloadKind(kind.about, kind.prompts, low, high, kind.answer, mean)


def _questions(kind: WorkloadKind, chance: random.Random, count: TokenCounter) -> list[dict[str, Any]]:
    events = [generated_text.event(chance) for _ in range(kind.prompts)]
    heads = [f"Read the passage and answer the question.\n\n{sentence}" for sentence, _ in events]
    tails = [f"\n\nQuestion: {question}\nAnswer:" for _, question in events]
    return _rows(kind, _fill(heads, tails, prompt_lengths(kind, chance), chance, count))


def _prose(task: str, kind: WorkloadKind, chance: random.Random, count: TokenCounter) -> list[dict[str, Any]]:
    heads = [f"{task}\n\n{generated_text.event(chance)[0]}" for _ in range(kind.prompts)]
    return _rows(kind, _fill(heads, ["\n\nSummary:"] * kind.prompts, prompt_lengths(kind, chance), chance, count))


def _code(kind: WorkloadKind, chance: random.Random, count: TokenCounter) -> list[dict[str, Any]]:
    """Whole functions as far as they fit, then the beginning of another. Made in parts, as `fill_texts` does."""
    lengths = prompt_lengths(kind, chance)
    seeds = [chance.random() for _ in lengths]
    lasts = [generated_text.signature(chance) for _ in lengths]
    prompts: list[str] = []
    for start in range(0, len(lengths), FITTED_AT_ONCE):
        part = slice(start, start + FITTED_AT_ONCE)
        prompts += _functions(lengths[part], seeds[part], lasts[part], count)
    return _rows(kind, prompts)


def _functions(lengths: Sequence[int], seeds: Sequence[float], lasts: Sequence[str], count: TokenCounter) -> list[str]:
    sources = [generated_text.functions(random.Random(seed)) for seed in seeds]
    blocks = [
        [*islice(source, 2 + size // 40), last] for source, size, last in zip(sources, lengths, lasts, strict=True)
    ]
    # counted at once: a counting takes the library a moment
    sizes = iter(count([block for own in blocks for block in own]))
    return [_first(own, [next(sizes) for _ in own], size) for own, size in zip(blocks, lengths, strict=True)]


def _first(blocks: Sequence[str], sizes: Sequence[int], length: int) -> str:
    """Join the last block to as many blocks from the beginning as fit with it."""
    room = length - sizes[-1]
    fitting = takewhile(lambda pair: pair[1] <= room, zip(blocks[:-1], accumulate(sizes[:-1]), strict=True))
    return "".join(block for block, _ in fitting) + blocks[-1]


def _chat(kind: WorkloadKind, chance: random.Random, count: TokenCounter) -> list[dict[str, Any]]:
    turns = [chance.randint(LEAST_TURNS, MOST_TURNS) for _ in range(kind.prompts)]
    sizes = [chance.randint(kind.low, kind.high) for _ in range(sum(turns))]
    texts = iter(
        _fill(["Tell me more about this."] * len(sizes), [" What do you think?"] * len(sizes), sizes, chance, count)
    )
    system = "You are a helpful assistant. Answer briefly."
    return [{"turns": [next(texts) for _ in range(n)], "system": system, "max_tokens": kind.answer} for n in turns]


def _shared(kind: WorkloadKind, chance: random.Random, count: TokenCounter) -> list[dict[str, Any]]:
    prefixes = _fill(["Follow these notes."] * PREFIXES, ["\n\n"] * PREFIXES, [PREFIX_TOKENS] * PREFIXES, chance, count)
    questions = [generated_text.event(chance)[1] for _ in range(kind.prompts)]
    own = _fill(
        ["Consider this as well."] * kind.prompts,
        [f" {question}" for question in questions],
        prompt_lengths(kind, chance),
        chance,
        count,
    )
    return _rows(kind, [prefixes[number % PREFIXES] + text for number, text in enumerate(own)])


def _rows(kind: WorkloadKind, prompts: Sequence[str]) -> list[dict[str, Any]]:
    answer = {"max_tokens": kind.answer} if kind.answer else {}
    return [{"prompt": prompt, **answer} for prompt in prompts]


def _fill(
    heads: Sequence[str], tails: Sequence[str], lengths: Sequence[int], chance: random.Random, count: TokenCounter
) -> list[str]:
    """Return texts of the given lengths in tokens, each with words of its own."""
    seeds = [chance.random() for _ in lengths]
    return fill_texts(heads, tails, lengths, seeds, count)


def fill_texts(
    heads: Sequence[str],
    tails: Sequence[str],
    lengths: Sequence[int],
    seeds: Sequence[float | str],
    count: TokenCounter,
) -> list[str]:
    """Return texts of the given lengths in tokens, or as short as possible: head, enough words of prose, tail.

    The same seed gives the same words. They are made in parts, so that memory holds a part at a time.
    """
    filled: list[str] = []
    for start in range(0, len(lengths), FITTED_AT_ONCE):
        part = slice(start, start + FITTED_AT_ONCE)
        filled += _fit(heads[part], tails[part], lengths[part], [_Words(seed) for seed in seeds[part]], count)
    return filled


def _fit(
    heads: Sequence[str], tails: Sequence[str], lengths: Sequence[int], words: Sequence[_Words], count: TokenCounter
) -> list[str]:
    """The number of words is found by counting and correcting; what is left after some rounds is a token or two."""
    word_counts = [size // 2 for size in lengths]
    best: list[tuple[int, str]] = [(10**9, "")] * len(lengths)
    for _ in range(FITTING_ROUNDS):
        # 1. Only texts that are not yet as long as wanted are made and counted again.
        open_ = [number for number, (off, _) in enumerate(best) if off]
        texts = [heads[number] + words[number].first(word_counts[number]) + tails[number] for number in open_]
        # 2. Keep the nearest, and correct the number of words by the words that a token takes.
        for number, text, tokens in zip(open_, texts, count(texts) if texts else (), strict=True):
            missing = lengths[number] - tokens
            best[number] = min(best[number], (abs(missing), text), key=lambda pair: pair[0])
            per_token = max(0.05, word_counts[number] / max(1, tokens))
            step = round(missing * per_token) or (missing > 0) - (missing < 0)
            word_counts[number] = max(0, word_counts[number] + step)
    return [text for _, text in best]


class _Words:
    """The first so many words of an endless text."""

    def __init__(self, seed: float | str) -> None:
        self._more: Iterator[str] = generated_text.sentences(random.Random(seed))
        self._words: list[str] = []

    def first(self, number: int) -> str:
        while len(self._words) < number:
            self._words += next(self._more).split(" ")
        return (" " + " ".join(self._words[:number])).rstrip(".,") + "." if number else ""
