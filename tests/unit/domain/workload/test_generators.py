"""Built-in workloads: the lengths they promise by the model's own tokenizer, the same for the same seed, within the
context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import fmean

import pytest

from backend.catalog.text import token_lengths
from backend.domain.errors import InvalidWorkload
from backend.domain.workload import generators, size_limits
from backend.domain.workload.generators import PREFIX_TOKENS, PREFIXES, WORKLOAD_KINDS, generate
from backend.domain.workload.workload import Workload, parse_workload
from backend.settings import ASSETS

STARTER = ASSETS / "starter" / "target"
CONTEXT = 2048


def count(texts: Sequence[str]) -> list[int]:
    counted = token_lengths.lengths(STARTER, texts)
    assert counted is not None
    return counted


@cache
def generated(name: str, seed: int = 0) -> Workload:
    return parse_workload(name, generate(name, count, seed=seed, context=CONTEXT))


def test_question_answering_is_that_of_the_announcement() -> None:
    """500 to 1,000 tokens, 622 in the mean, at most 250 new ones, by the starter model's own tokenizer."""
    result = generated("question-answering")
    tokens = count([prompt.prompt for prompt in result.prompts])
    assert min(tokens) >= 500
    assert max(tokens) <= 1000
    assert fmean(tokens) == pytest.approx(622, abs=2)
    assert {prompt.max_tokens for prompt in result.prompts} == {250}
    assert len({prompt.prompt for prompt in result.prompts}) == len(result.prompts)
    assert all(prompt.prompt.endswith("Answer:") for prompt in result.prompts)


@pytest.mark.parametrize("name", WORKLOAD_KINDS)
def test_every_prompt_fits_and_stays_within_its_lengths(name: str) -> None:
    result, kind = generated(name), WORKLOAD_KINDS[name]
    texts = [prompt.texts() for prompt in result.prompts]
    sizes = iter(count([text for own in texts for text in own]))
    tokens = [sum(next(sizes) for _ in own) for own in texts]
    answers = [kind.answer * len(prompt.turns or ("",)) for prompt in result.prompts]
    assert all(size + answer <= CONTEXT for size, answer in zip(tokens, answers, strict=True))
    assert len(result.prompts) == kind.prompts


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others() -> None:
    assert generated("chat").sha256 == generated.__wrapped__("chat").sha256 != generated("chat", seed=1).sha256


def test_conversations_have_several_turns_and_prefixes_are_shared() -> None:
    assert {len(prompt.turns or ()) for prompt in generated("chat").prompts} == {3, 4, 5, 6}
    shared = generated("shared-prefix").prompts
    assert len({prompt.prompt[: PREFIX_TOKENS * 2] for prompt in shared}) == PREFIXES


def test_long_context_grows_with_the_context() -> None:
    short, long = (parse_workload("w", generate("long-context", count, context=size)) for size in (2048, 4096))
    assert 2 * count([short.prompts[0].prompt])[0] < count([long.prompts[0].prompt])[0] < 4096 - 200


def test_a_context_too_short_for_it_is_told() -> None:
    with pytest.raises(InvalidWorkload, match="does not fit into a context of 512 tokens"):
        generate("question-answering", count, context=512)


@pytest.mark.parametrize("name", WORKLOAD_KINDS)
def test_more_than_may_be_made_is_refused_before_anything_is_made(name: str) -> None:
    def never(texts: Sequence[str]) -> list[int]:
        raise AssertionError("a prompt was made")

    with pytest.raises(InvalidWorkload, match=r"1,000,000 prompts.* ask for less") as refused:
        generate(name, never, prompts=1_000_000)
    assert refused.value.named == ("requests", "repeats", "prefix_cache")


def test_a_size_whose_double_would_be_too_large_is_made_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "MOST_MADE_TOKENS", 200 * 192)
    assert generate("short-questions", by_characters, prompts=150).count(b"\n") == 150


def test_lines_made_in_parts_are_those_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("question-answering", "code-completion", "chat"):
        whole = generate(name, by_characters)
        monkeypatch.setattr(generators, "FITTED_AT_ONCE", 7)
        assert generate(name, by_characters) == whole
        monkeypatch.undo()


def test_short_questions_leave_the_length_of_answers_to_the_load() -> None:
    prompts = generated("short-questions").prompts
    assert {prompt.max_tokens for prompt in prompts} == {None}
    assert len({prompt.prompt for prompt in prompts}) == len(prompts)


def by_characters(texts: Sequence[str]) -> list[int]:
    return [len(text) // 4 for text in texts]
