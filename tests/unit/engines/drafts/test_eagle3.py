"""The EAGLE-3 head against the same arithmetic written out round by round, and what is saved of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from backend.domain.errors import RequestError
from backend.domain.recipe.draft_training import Training
from backend.engines.drafts import reduced_vocabulary
from backend.engines.drafts.eagle3 import Eagle3, depths, rotation
from backend.engines.drafts.losses import LOSSES
from backend.engines.drafts.proposer import Batch
from backend.engines.drafts.target import Target
from tests.families import tiny

TOKENS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tiny(tmp_path_factory.mktemp("target"), "llama", layers=6))


@pytest.fixture
def head(target: Target) -> Eagle3:
    result = Eagle3(target, Training(kind="eagle3", tokens=TOKENS, loss="kl"))
    result.prepare([range(40, 200)])
    return result


def _batch(target: Target, lengths: tuple[int, ...] = (14, 11), begin: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(40, 200, (len(lengths), max(lengths)), generator=generator)
    place = torch.arange(max(lengths)).expand_as(tokens)
    real = place < torch.tensor(lengths)[:, None]
    layers = depths(target.config.num_hidden_layers)
    final, hidden = target.states(tokens, real, layers)
    warm = torch.zeros(len(lengths))
    return Batch(target, tokens, real & (place >= begin), real, warm, final.clone(), hidden.clone())


def _heads(states: torch.Tensor, size: int) -> torch.Tensor:
    return states.view(len(states), -1, size).transpose(0, 1)


def _turned(states: torch.Tensor, at: torch.Tensor, config: Any) -> torch.Tensor:
    """Rotary embeddings, half against half, of [heads, positions, size]."""
    cosine, sine = rotation(config, at)
    one, other = states.chunk(2, -1)
    return states * cosine + torch.cat([-other, one], -1) * sine


def _proposed(head: Eagle3, tokens: torch.Tensor, hidden: torch.Tensor, last: int, count: int) -> list[torch.Tensor]:
    """Of the round whose last known token is `last` the logits of each step, the whole layer computed again at every
    step. The target's states [positions, layers, H] are read in the dtype that it computes in, which is 16 bits where
    the processor has them."""
    own, middle, config = head.head, head.head.midlayer, head.config
    hidden = hidden.to(head.target.head.dtype)
    states = [
        own.fc(torch.cat([norm(state) for norm, state in zip(own.fc_norm, hidden[at], strict=True)]))
        for at in range(last)
    ]
    results = []
    for _ in range(count):
        state = torch.stack(states)
        at = torch.arange(len(states))
        words = middle.input_layernorm(head.target.embedding[tokens[1 : len(states) + 1]].float())
        read = torch.cat([words, middle.hidden_norm(state)], -1)
        query, key, value = (_heads(middle.self_attn[f"{name}_proj"](read), config.head_dim) for name in "qkv")
        group = len(query) // len(key)
        query, key = _turned(query, at, config), _turned(key, at, config).repeat_interleave(group, 0)
        scores = query[:, -1:] @ key.transpose(1, 2) / config.head_dim**0.5
        mixed = (scores.softmax(-1) @ value.repeat_interleave(group, 0)).transpose(0, 1).reshape(-1)
        after = state[-1] + middle.self_attn["o_proj"](mixed)
        after = after + middle.mlp(middle.post_attention_layernorm(after))
        results.append(own.lm_head(own.norm(after)))
        states.append(after)
    return results


def test_every_step_is_what_a_server_would_compute_in_its_round(head: Eagle3, target: Target) -> None:
    batch = _batch(target)
    assert batch.hidden is not None
    with torch.no_grad():
        hidden = batch.hidden.float()
        batch = Batch(target, batch.tokens, batch.answers, batch.real, batch.temperature, batch.final, hidden)
        steps = head.ahead(batch, TOKENS)
        for row, last in ((0, 5), (0, 9), (1, 4), (1, 8)):
            slow = _proposed(head, batch.tokens[row], hidden[row], last, TOKENS)
            for ahead, logits in enumerate(slow):
                torch.testing.assert_close(
                    head.head.lm_head(steps[ahead][row, last + ahead]), logits, atol=1e-4, rtol=1e-3
                )


def test_a_token_is_accepted_where_its_step_makes_it_most_probable(head: Eagle3, target: Target) -> None:
    batch = _batch(target)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        steps = [head.vocabulary[head.head.lm_head(each).argmax(-1)] for each in head.ahead(batch, TOKENS)]
    message = batch.tokens.clone()
    for ahead in range(TOKENS):  # the first row says what its round after token 6 would propose
        message[0, 7 + ahead] = steps[ahead][0, 6 + ahead]
    same = Batch(target, message, batch.answers, batch.real, batch.temperature, batch.final, batch.hidden)
    accepted = head.accepted(same, TOKENS)
    assert accepted.shape == (2, 14, TOKENS)
    assert accepted[0, 6, 0] == 1.0
    assert accepted.sum() < accepted.numel() / 4


def test_every_weight_learns_and_the_loss_falls(head: Eagle3, target: Target) -> None:
    batch, loss = _batch(target), LOSSES["kl"]
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        result = head.loss(batch, loss)
        result.backward()  # type: ignore[no-untyped-call]
        assert all(each.grad is not None and bool(each.grad.any()) for each in head.parameters())
        optimizer.step()
        losses.append(float(result.detach()))
    assert losses[-1] < losses[0] / 2


def test_a_state_that_is_kept_goes_on_to_the_same_bytes(head: Eagle3, target: Target) -> None:
    state = head.state()
    other = Eagle3(target, Training(kind="eagle3", tokens=TOKENS, seed=5))
    other.prepare([range(40, 200)])
    other.load(state)
    one, two = (float(each.loss(_batch(target), LOSSES["tv"]).detach()) for each in (head, other))
    assert one == two


def test_the_checkpoint_has_the_names_and_sizes_that_vllm_loads(head: Eagle3, tmp_path: Path) -> None:
    head.save(tmp_path)
    weights, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3] == list(head.layers)
    assert weights["fc.weight"].shape == (128, 2 * 128)
    assert weights["fc_norm.1.weight"].shape == (128,)
    assert weights["midlayer.self_attn.q_proj.weight"].shape == (128, 256)
    assert weights["lm_head.weight"].shape == (config["draft_vocab_size"], 128)
    assert {each.dtype for each in weights.values()} == {torch.bfloat16}
    assert not {"d2t", "t2d"} & set(weights), "vLLM has no place for them where the vocabulary is whole"
    head.vocabulary = head.vocabulary[::2]
    head.save(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["d2t"].tolist() == list(range(len(head.vocabulary)))


def test_a_target_of_another_family_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="not for gpt2: train a small model"):
        Eagle3(Target(tiny(tmp_path, "gpt2")), Training(kind="eagle3"))


def test_the_reduced_vocabulary_has_the_most_frequent_tokens() -> None:
    frequent = reduced_vocabulary.frequent([[9, 9, 7, 7, 7], [5]], 4, 12)
    assert frequent.tolist() == [0, 5, 7, 9]
    maps = reduced_vocabulary.maps(frequent, 12)
    assert maps["d2t"].tolist() == [0, 4, 5, 6]
    assert maps["t2d"].nonzero().flatten().tolist() == [0, 5, 7, 9]
    assert reduced_vocabulary.maps(frequent, 4) == {}
