"""Heads that were trained here, served by vLLM: it loads their folder, and accepts of their tokens what the training
counts."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import Serving
from backend.engines.drafts import acceptance
from backend.engines.drafts.acceptance import Acceptance
from backend.engines.drafts.draft_heads import Heads
from backend.engines.drafts.eagle3 import Eagle3
from backend.engines.drafts.losses import LOSSES
from backend.engines.drafts.medusa import Medusa
from backend.engines.drafts.target import Target
from backend.engines.drafts.training_data import AnsweredPrompt, batch_of_new
from backend.serving.vllm import VllmServer
from backend.settings import ASSETS

pytestmark = [pytest.mark.campaign, pytest.mark.vllm, pytest.mark.timeout(600)]

TOKENS, ANSWER = 3, 48
TEXTS = [text[:160] for text in (ASSETS / "text" / "held_out.txt").read_text().split("\n\n\n") if len(text) > 200][:5]
NEAR = 0.08
"""Between the shares of rounds, counted here and by the server, which rounds products otherwise and counts the last
round too."""


def _trained(head: Heads, answered_prompts: list[AnsweredPrompt]) -> None:
    """By heart, so that there is something to accept."""
    head.prepare([each.answer for each in answered_prompts])
    batch, steps = (
        batch_of_new(head.target, answered_prompts, head.layers),
        torch.optim.AdamW(head.parameters(), lr=4e-3),
    )
    for _ in range(25):
        steps.zero_grad()
        head.loss(batch, LOSSES["kl"]).backward()  # type: ignore[no-untyped-call]
        steps.step()


def _answered(server: VllmServer, prompt: list[int]) -> list[int]:
    body = {
        "model": server.served_name,
        "prompt": prompt,
        "max_tokens": ANSWER,
        "temperature": 0,
        "return_token_ids": True,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"}
    request = urllib.request.Request(f"{server.url}/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        tokens: list[int] = json.loads(answer.read())["choices"][0]["token_ids"]
    return tokens


def _counted(head: Heads, answered_prompts: list[AnsweredPrompt]) -> Acceptance:
    begins, whole = (
        torch.tensor(result)
        for result in zip(*((len(a), len(a) + len(b)) for a, b, _ in answered_prompts), strict=True)
    )
    return acceptance.walk(
        head.accepted(batch_of_new(head.target, answered_prompts, head.layers), TOKENS), begins, whole - 1
    )


@pytest.mark.parametrize(("kind", "created"), [("eagle3", Eagle3), ("medusa", Medusa)])
def test_vllm_accepts_of_a_trained_head_what_the_training_counts(
    kind: Any, created: type[Heads], starter_target: Path, serve_python: Path, vllm_cache: Path, tmp_path: Path
) -> None:
    target = Target(starter_target)
    head = created(target, Training(kind=kind, tokens=TOKENS))
    prompts = [target.prompt(text) for text in TEXTS]
    answers = target.answer(prompts, 0.0, ANSWER, 0)
    _trained(
        head, [AnsweredPrompt(prompt, answer.tokens, 0.0) for prompt, answer in zip(prompts, answers, strict=True)]
    )
    folder = tmp_path / "head"
    folder.mkdir()
    head.save(folder)
    variant = Variant(
        name="starter",
        source="starter",
        kind="model",
        model_path=str(starter_target),
        serving=Serving(enforce_eager=True),
        speculation=Speculation(method=kind, tokens=TOKENS, draft_path=str(folder)),
    )
    with VllmServer(
        variant, python=serve_python, log=tmp_path / "log", cache_root=vllm_cache, kv_cache_gib=0.0625
    ) as server:
        answered_prompts = [AnsweredPrompt(prompt, _answered(server, prompt), 0.0) for prompt in prompts]
        counters = server.metrics()
    ours = _counted(head, answered_prompts)
    theirs = [counters[f"accepted_at_{place}"] / counters["drafts"] for place in range(TOKENS)]
    assert ours.length > 1.3
    assert theirs == pytest.approx(ours.by_position, abs=NEAR)
