"""Asks each variant that speculates, and the same without, for the answers that show whether speculation keeps them.

Of what our servers serve: prompts and answers as token ids, so that nothing is decided by how tokens are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from backend.serving.vllm import VllmServer
from backend.worker.measuring.server_pool import ServerPool

LONGEST_PROMPT = 512
"""Tokens: longer ones are cut, so that they fit every context."""


class AnswerCounts(NamedTuple):
    """How much is asked: greedy answers of so many tokens, `at_once` where the engine is held against itself, and
    samples."""

    prompts: int = 24
    tokens: int = 48
    at_once: int = 8
    sampled_prompts: int = 12
    samples: int = 128
    sampled_tokens: int = 4


DEFAULT_COUNTS = AnswerCounts()


class ServerAnswers(NamedTuple):
    """What one server answered. `drafted`: tokens that were proposed for the greedy answers and for the samples."""

    greedy: list[Answer]
    at_once: list[Answer]
    samples: list[list[Answer]]
    drafted: tuple[int, int]


def measure_lossless(
    pool: ServerPool, prompts: Sequence[Prompt], lost: dict[int, str], progress: Progress
) -> dict[int, Lossless]:
    """By variant index, those that speculate and are served here. A server that goes away costs its own figure
    alone."""
    variants = list(pool.variants)
    asked = [index for index, each in enumerate(variants) if index not in lost and speculates(each)]
    progress.phase(
        "lossless", "Comparing answers with and without speculation", total=2 * len(asked), unit="servers", weight=1.0
    )
    arms: dict[int, ServerAnswers | None] = {}
    pairs: dict[int, int] = {}
    for number, index in enumerate(asked):  # those that are up first
        arms[index] = _arm(pool, index, prompts, progress)
        progress.advance(number + 1)
    for number, index in enumerate(asked):
        place = pairs[index] = find_or_add_twin(pool, index)
        arms[place] = arms[place] if place in arms else _arm(pool, place, prompts, progress)
        progress.advance(len(asked) + number + 1)
    both = {index: (arms[index], arms[place]) for index, place in pairs.items()}
    return {
        index: compare_answers(one, other)
        for index, (one, other) in both.items()
        if one is not None and other is not None
    }


def speculates(variant: Variant) -> bool:
    return variant.kind != "url" and variant.neuron is None and variant.speculation is not None


def without_speculation(variant: Variant) -> Variant:
    """The same, but that nothing is guessed; its compile cache is of another graph."""
    return variant.model_copy(
        update={"speculation": None, "compile_cache": None, "name": f"{variant.name} without speculation"}
    )


def find_or_add_twin(pool: ServerPool, index: int) -> int:
    """A variant of the evaluation that is the same without speculation, else one that is added."""
    wanted = pool.variants[index]
    known = (place for place, each in enumerate(pool.variants) if differs_by_speculation_only(each, wanted))
    place = next(known, None)
    return pool.add(without_speculation(wanted)) if place is None else place


def _arm(pool: ServerPool, index: int, prompts: Sequence[Prompt], progress: Progress) -> ServerAnswers | None:
    try:
        server = pool.use(index).server
        assert server is not None
        return collect_answers(server, prompts, index, chat=pool.options.endpoint == "chat")
    except ServerFailed as error:
        progress.warn(f"Whether {pool.variants[index].name} keeps its answers is not known: {error}")
        return None


def collect_answers(
    server: VllmServer, prompts: Sequence[Prompt], number: int, *, chat: bool, sizes: AnswerCounts = DEFAULT_COUNTS
) -> ServerAnswers:
    """`number`: no two servers of a comparison have the same. Raises ServerFailed."""
    tokens = [_tokens(server, prompt, chat) for prompt in prompts[: sizes.prompts]]
    start = _drafted(server)
    greedy = [answer for prompt in tokens for answer in _greedy(server, [prompt], sizes)]
    between = _drafted(server)
    groups = [tokens[place : place + sizes.at_once] for place in range(0, len(tokens), sizes.at_once)]
    at_once = [answer for group in groups for answer in _greedy(server, group, sizes)]
    before = _drafted(server)
    if sizes.sampled_prompts:
        _samples(server, tokens[0], 1, number + 2)  # thrown away: from here on no two servers draw the same numbers
    samples = [
        _samples(server, prompt, sizes.samples, sizes.sampled_tokens) for prompt in tokens[: sizes.sampled_prompts]
    ]
    return ServerAnswers(greedy, at_once, samples, (between - start, _drafted(server) - before))


def compare_answers(speculating: ServerAnswers, plain: ServerAnswers, sizes: AnswerCounts = DEFAULT_COUNTS) -> Lossless:
    """What the two come to."""
    greedy = GreedyAnswers(speculating.greedy, plain.greedy, plain.at_once, sizes.at_once, speculating.drafted[0])
    samples = (
        SampledAnswers(speculating.samples, plain.samples, speculating.drafted[1]) if sizes.sampled_prompts else None
    )
    return judge_answers(greedy, samples)


def _drafted(server: VllmServer) -> int:
    return int(server.metrics().get("drafted_tokens", 0))


def _tokens(server: VllmServer, prompt: Prompt, chat: bool) -> list[int]:
    """As the load asks it: in the model's template where that is of chat."""
    asked = {"messages": [{"role": "user", "content": prompt.prompt}]} if chat else {"prompt": prompt.prompt}
    return [int(token) for token in server.answer("/tokenize", asked)["tokens"]][-LONGEST_PROMPT:]


def _greedy(server: VllmServer, prompts: Sequence[Sequence[int]], sizes: AnswerCounts) -> list[Answer]:
    """Asked at once, in the order of the prompts."""
    return _answers(server, {"prompt": list(prompts), "max_tokens": sizes.tokens, "temperature": 0})


def _samples(server: VllmServer, prompt: Sequence[int], samples: int, tokens: int) -> list[Answer]:
    """Without a seed: on a processor vLLM 0.32 dies of one where a prompt is read in parts (`CPU Generator does not use
    offset`)."""
    asked = {"prompt": list(prompt), "max_tokens": tokens, "n": samples}
    return _answers(server, {**asked, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0})


def _answers(server: VllmServer, asked: dict[str, Any]) -> list[Answer]:
    choices = server.answer("/v1/completions", {**asked, "return_token_ids": True})["choices"]
    return [choice["token_ids"] for choice in sorted(choices, key=lambda choice: choice["index"])]
