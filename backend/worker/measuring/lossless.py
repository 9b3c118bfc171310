"""Collects answers of each variant with and without speculation, which show whether speculation changes them.

Works on servers that Whetstone started: prompts and answers are token ids, so that spelling of tokens decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence.lossless import (
    Answer,
    GreedyAnswers,
    SampledAnswers,
    differs_by_speculation_only,
    judge_answers,
)
from backend.domain.evaluation.evidence.schema import Lossless
from backend.domain.jobs.progress import Progress
from backend.domain.workload.workload import Prompt
from backend.serving.model_server import ModelServer
from backend.worker.measuring.server_pool import ServerPool

LONGEST_PROMPT = 512
"""Tokens of a prompt; longer ones are cut, so that they fit every context."""


class AnswerCounts(NamedTuple):
    """Numbers and lengths of the answers to collect."""

    prompts: int = 24
    tokens: int = 48
    """Tokens of a greedy answer."""
    at_once: int = 8
    """Prompts sent together when the engine is compared with itself."""
    sampled_prompts: int = 12
    samples: int = 128
    """Sampled answers per prompt."""
    sampled_tokens: int = 4


DEFAULT_COUNTS = AnswerCounts()


class ServerAnswers(NamedTuple):
    """The answers of one server."""

    greedy: list[Answer]
    at_once: list[Answer]
    samples: list[list[Answer]]
    drafted: tuple[int, int]
    """Tokens proposed for the greedy answers and for the samples."""


def measure_lossless(
    pool: ServerPool, prompts: Sequence[Prompt], lost: dict[int, str], progress: Progress
) -> dict[int, Lossless]:
    """Return the comparison by variant index, for variants that speculate and are served here.

    A server that stops answering costs only its own comparison.
    """
    # 1. Ask the speculating variants first: in resident mode they are up already.
    indices = [index for index, variant in enumerate(pool.variants) if index not in lost and speculates(variant)]
    progress.phase(
        "lossless", "Comparing answers with and without speculation", total=2 * len(indices), unit="servers", weight=1.0
    )
    collected: dict[int, ServerAnswers | None] = {}
    for number, index in enumerate(indices, 1):
        collected[index] = _try_to_collect(pool, index, prompts, progress)
        progress.advance(number)

    # 2. Ask the same variants without speculation, each once.
    twins: dict[int, int] = {}
    for number, index in enumerate(indices, len(indices) + 1):
        twin = twins[index] = find_or_add_twin(pool, index)
        if twin not in collected:
            collected[twin] = _try_to_collect(pool, twin, prompts, progress)
        progress.advance(number)

    # 3. Compare the pairs of which both answered.
    results = {}
    for index, twin in twins.items():
        speculating, plain = collected[index], collected[twin]
        if speculating is not None and plain is not None:
            results[index] = compare_answers(speculating, plain)
    return results


def speculates(variant: Variant) -> bool:
    return variant.kind != "url" and variant.neuron is None and variant.speculation is not None


def without_speculation(variant: Variant) -> Variant:
    """Return the variant without speculation, and without its compile cache, which belongs to another graph."""
    return variant.model_copy(
        update={"speculation": None, "compile_cache": None, "name": f"{variant.name} without speculation"}
    )


def find_or_add_twin(pool: ServerPool, index: int) -> int:
    """Return the index of a variant that differs only by having no speculation; add one if the pool has none."""
    speculating = pool.variants[index]
    for twin, variant in enumerate(pool.variants):
        if differs_by_speculation_only(variant, speculating):
            return twin
    return pool.add(without_speculation(speculating))


def _try_to_collect(
    pool: ServerPool, index: int, prompts: Sequence[Prompt], progress: Progress
) -> ServerAnswers | None:
    try:
        server = pool.use(index).server
        assert server is not None
        return collect_answers(server, prompts, index, chat=pool.options.endpoint == "chat")
    except ServerFailed as error:
        progress.warn(
            f"It is not known whether speculation changes the answers of {pool.variants[index].name}: {error}"
        )
        return None


def collect_answers(
    server: ModelServer, prompts: Sequence[Prompt], number: int, *, chat: bool, sizes: AnswerCounts = DEFAULT_COUNTS
) -> ServerAnswers:
    """Ask a server for greedy answers one at a time, the same several at a time, and samples.

    `number` differs between the servers of a comparison. Raises ServerFailed.
    """
    tokens = [server.prompt_tokens(prompt.prompt, chat=chat)[-LONGEST_PROMPT:] for prompt in prompts[: sizes.prompts]]

    # 1. Greedy answers, one prompt at a time.
    drafted_at_start = _drafted_tokens(server)
    greedy: list[Answer] = []
    for prompt in tokens:
        greedy += server.token_answers([prompt], sizes.tokens)
    drafted_greedy = _drafted_tokens(server) - drafted_at_start

    # 2. The same prompts in groups, which show how much batching alone changes.
    at_once: list[Answer] = []
    for start in range(0, len(tokens), sizes.at_once):
        at_once += server.token_answers(tokens[start : start + sizes.at_once], sizes.tokens)

    # 3. Samples. The first answer is discarded: its length makes each server draw other random numbers from here on.
    #    Every second prompt goes on with its own beginning, so that a method which looks up repetitions proposes some.
    drafted_before_samples = _drafted_tokens(server)
    if sizes.sampled_prompts:
        server.token_answers([tokens[0]], number + 2, samples=1)
    samples = [
        server.token_answers([prompt], sizes.sampled_tokens, samples=sizes.samples)
        for prompt in map(_repeat_beginning, range(sizes.sampled_prompts), tokens[: sizes.sampled_prompts])
    ]
    drafted_samples = _drafted_tokens(server) - drafted_before_samples
    return ServerAnswers(greedy, at_once, samples, (drafted_greedy, drafted_samples))


def compare_answers(speculating: ServerAnswers, plain: ServerAnswers, sizes: AnswerCounts = DEFAULT_COUNTS) -> Lossless:
    """Judge the answers with speculation against those without."""
    greedy = GreedyAnswers(speculating.greedy, plain.greedy, plain.at_once, sizes.at_once, speculating.drafted[0])
    samples = None
    if sizes.sampled_prompts:
        samples = SampledAnswers(speculating.samples, plain.samples, speculating.drafted[1])
    return judge_answers(greedy, samples)


def _repeat_beginning(place: int, tokens: list[int]) -> list[int]:
    """Return every second prompt with its first half behind it, and the others as they are."""
    return tokens + tokens[: len(tokens) // 2] if place % 2 else tokens


def _drafted_tokens(server: ModelServer) -> int:
    return int(server.metrics().get("drafted_tokens", 0))
