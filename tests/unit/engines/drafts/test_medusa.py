"""Medusa heads: which state each reads, that they learn, and what vLLM is to load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backend.domain.recipe.draft_training import Training
from backend.engines.drafts.losses import LOSSES
from backend.engines.drafts.medusa import Medusa
from backend.engines.drafts.proposer import Batch
from backend.engines.drafts.target import Target
from tests.families import tiny

TOKENS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tiny(tmp_path_factory.mktemp("target"), "llama", layers=4))


@pytest.fixture
def heads(target: Target) -> Medusa:
    result = Medusa(target, Training(kind="medusa", tokens=TOKENS))
    result.prepare([range(40, 200)])
    return result


def _batch(target: Target) -> Batch:
    tokens = torch.randint(40, 200, (3, 12), generator=torch.Generator().manual_seed(3))
    real = torch.ones_like(tokens).bool()
    final, _ = target.states(tokens, real)
    return Batch(target, tokens, torch.arange(12).expand_as(tokens) >= 4, real, torch.zeros(3), final.clone())


def test_each_block_reads_the_state_of_which_the_round_began(heads: Medusa, target: Target) -> None:
    batch = _batch(target)
    with torch.no_grad():
        for number, block in enumerate(heads.head.blocks):
            block.layers[0].weight.fill_(0.01 * (number + 1))
        ahead = heads.ahead(batch, TOKENS)
        for number, block in enumerate(heads.head.blocks):
            last = 6  # known last: its own state, not read yet, lies one later
            state = batch.final[1, last - 1].float()
            required = state + torch.nn.functional.silu(block.layers[0](state))
            torch.testing.assert_close(ahead[number][1, last + number], required)


def test_heads_learn_and_are_accepted_more(heads: Medusa, target: Target) -> None:
    batch, optimizer = _batch(target), torch.optim.AdamW(heads.parameters(), lr=3e-3)
    before = float(heads.accepted(batch, TOKENS).sum())
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = heads.loss(batch, LOSSES["ce"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    own = Batch(target, _greedy_answers(target, batch), batch.answers, batch.real, batch.temperature, batch.final)
    assert float(heads.accepted(own, TOKENS).sum()) > before + 8


def _greedy_answers(target: Target, batch: Batch) -> torch.Tensor:
    """The tokens with each of the answer as the target would greedily say it after those in the batch."""
    best = target.logits(batch.final).argmax(-1)
    return torch.where(batch.answers, torch.cat([batch.tokens[:, :1], best[:, :-1]], 1), batch.tokens)


def test_the_checkpoint_has_the_names_and_sizes_that_vllm_loads(heads: Medusa, tmp_path: Path) -> None:
    heads.save(tmp_path)
    weights, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "medusa"
    assert sorted(weights) == [
        "blocks.0.layers.0.weight",
        "blocks.1.layers.0.weight",
        "blocks.2.layers.0.weight",
        "lm_head.weight",
        "token_map",
    ]
    assert weights["token_map"].tolist() == heads.vocabulary.tolist()
    assert config["num_heads"] == TOKENS
    assert weights["lm_head.weight"].shape == (config["truncated_vocab_size"], config["hidden_size"])
