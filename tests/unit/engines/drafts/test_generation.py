"""Answers are those of the model itself, and their states those that it has of the finished text."""

from __future__ import annotations

import pytest
import torch

from backend.engines.drafts.generation import draw
from backend.engines.drafts.target import Target
from tests.tiny import tiny_llama

PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3], [11]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """In fp32, where the order of sums decides no token."""
    result = Target(tiny_llama(tmp_path_factory.mktemp("target") / "model", layers=3))
    result.model.float()
    result.stored = torch.float32
    return result


def test_greedy_answers_are_the_most_probable_tokens_of_each_prompt_by_itself(target: Target) -> None:
    for prompt, answer in zip(PROMPTS, target.answer(PROMPTS, 0.0, 12, 0), strict=True):
        tokens = torch.tensor([prompt + answer.tokens])
        final, _ = target.states(tokens, torch.ones_like(tokens))
        assert target.logits(final[0, len(prompt) - 1 : -1]).argmax(-1).tolist() == answer.tokens


def test_states_are_those_of_the_whole_text(target: Target) -> None:
    for prompt, answer in zip(PROMPTS, target.answer(PROMPTS, 1.0, 12, 3, layers=(1, 2)), strict=True):
        tokens = torch.tensor([prompt + answer.tokens])
        final, hidden = target.states(tokens, torch.ones_like(tokens), (1, 2))
        torch.testing.assert_close(answer.final, final[0, :-1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(answer.hidden, hidden[0, :-1], rtol=1e-4, atol=1e-4)


def test_drawn_answers_hang_on_the_seed_alone(target: Target) -> None:
    first, again, other = ([each.tokens for each in target.answer(PROMPTS, 1.0, 12, seed)] for seed in (1, 1, 2))
    assert first == again != other


def test_an_answer_ends_with_the_token_that_ends_it_and_others_go_on(target: Target) -> None:
    free = target.answer(PROMPTS, 0.0, 12, 0)
    target.model.generation_config.eos_token_id = ending = free[0].tokens[2]
    result = target.answer(PROMPTS, 0.0, 12, 0)
    for answer, whole in zip(result, free, strict=True):
        stop = whole.tokens.index(ending) + 1 if ending in whole.tokens else 12
        assert answer.tokens == whole.tokens[:stop]


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    logits = torch.tensor([[0.0, 1.0, -30.0, 2.0]]).expand(20_000, 4)
    counts = draw(logits, 2.0, torch.Generator().manual_seed(0)).bincount(minlength=4) / 20_000
    torch.testing.assert_close(counts, (logits[0] / 2).softmax(-1), rtol=0, atol=0.015)
    assert counts[2] == 0
