"""Small drafts of a tiny target: what they begin as, what they learn, and whether the folder is a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.domain.recipe.draft_training import Training
from backend.engines.drafts import small_model
from backend.engines.drafts.generation import cut_at_end
from backend.engines.drafts.losses import LOSSES
from backend.engines.drafts.proposer import Batch
from backend.engines.drafts.small_model import Small
from backend.engines.drafts.target import Target
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tiny_llama(tmp_path_factory.mktemp("target") / "model", layers=5))


def a_batch(target: Target) -> Batch:
    """Two prompts with answers of the target's own, one greedy and one drawn."""
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5]]
    messages = [target.answer([prompt], at, 40, 0)[0].tokens for prompt, at in zip(prompts, (0.0, 1.0), strict=True)]
    length = max(len(a) + len(b) for a, b in zip(prompts, messages, strict=True))
    tokens, answers, real = (
        torch.zeros(2, length, dtype=torch.long),
        torch.zeros(2, length).bool(),
        torch.zeros(2, length).bool(),
    )
    for row, (prompt, answer) in enumerate(zip(prompts, messages, strict=True)):
        tokens[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        answers[row, len(prompt) : len(prompt) + len(answer)] = True
        real[row, : len(prompt) + len(answer)] = True
    final, hidden = target.states(tokens, real)
    return Batch(target, tokens, answers, real, torch.tensor([0.0, 1.0]), final, hidden)


@pytest.mark.parametrize("start", ["fresh", "pruned"])
def test_a_small_model_learns_what_its_target_says(target: Target, start: Any) -> None:
    draft, batch = Small(target, Training(start=start, hidden=64, layers=2)), a_batch(target)
    steps = torch.optim.AdamW(draft.parameters(), lr=3e-3)
    before = float(draft.accepted(batch, 3)[batch.predicting][:, 0].mean())
    for _ in range(40):
        steps.zero_grad()
        draft.loss(batch, LOSSES["kl"]).backward()  # type: ignore[no-untyped-call]
        steps.step()
    after = float(draft.accepted(batch, 3)[batch.predicting][:, 0].mean())
    assert 1 - after < 0.7 * (1 - before)


def test_a_whole_copy_of_the_target_is_accepted_everywhere(target: Target) -> None:
    batch = a_batch(target)
    result = Small(target, Training(start="pruned", layers=5)).accepted(batch, 2)[batch.predicting][:, 0]
    assert float(result.mean()) > 0.97  # products round differently in training


@pytest.mark.parametrize("start", ["fresh", "pruned"])
def test_what_is_saved_is_a_model_with_the_targets_tokenizer(target: Target, start: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from backend.catalog.cards.card import read_card

    draft = Small(target, Training(start=start, hidden=64, layers=2))
    draft.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.arange(20)[None]
    expected = draft.model(tokens).logits
    torch.testing.assert_close(loaded(tokens).logits, expected, atol=0.05, rtol=0.05)
    assert read_card(tmp_path).tokenizer_hash == read_card(target.folder).tokenizer_hash


def test_what_was_kept_goes_on_as_it_was(target: Target) -> None:
    batch, one = a_batch(target), Small(target, Training(hidden=64))
    other = Small(target, Training(hidden=64, seed=1))
    other.load(one.state())
    first, second = (draft.loss(batch, LOSSES["tv"]).detach() for draft in (one, other))
    assert float(first) == float(second)


def test_the_layers_kept_are_spread_from_the_first_to_the_last() -> None:
    assert small_model.spread(30, 4) == [0, 10, 19, 29]
    assert small_model.spread(30, 1) == [0]
    assert small_model.spread(3, 9) == [0, 1, 2]


def test_leading_components_keep_which_tokens_are_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(200, 3, generator=generator) @ torch.randn(3, 16, generator=generator)
    result = small_model.leading(table, 4)
    apart, remaining = torch.cdist(table, table), torch.cdist(result, result)
    ratio = (remaining / apart.clamp_min(1e-9))[apart > 0.1]
    assert float(ratio.std() / ratio.mean()) < 0.01


def test_an_answer_ends_with_the_token_that_ends_it() -> None:
    assert cut_at_end([4, 5, 0, 7], (0,)) == [4, 5, 0]
    assert cut_at_end([4, 5], ()) == [4, 5]
