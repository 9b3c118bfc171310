"""Acceptance of the starter draft as a training expects it, beside what vLLM counted on the same prompts
(acceptance.py).

    .venv/bin/python -m benchmarks.acceptance_replayed

The target answers the prompts alone, in this process; `engines.drafts.acceptance` says what of that the draft would
have had accepted. Rounds begin within the first 64 tokens of an answer, as those of the server do.
"""

from __future__ import annotations

import json

import torch

from backend.cli.output import table
from backend.engines.drafts import acceptance
from backend.engines.drafts.acceptance import Acceptance
from backend.engines.drafts.target import Target
from backend.engines.drafts.training_data import AnsweredPrompt, padded
from backend.settings import ASSETS
from benchmarks.acceptance import REQUESTS, TOKENS

ANSWER, TOGETHER = 64, 16
SEED = 7


def main() -> None:
    target, draft = (Target(ASSETS / "starter" / name) for name in ("target", "draft"))
    lines = (ASSETS / "workloads" / "starter-code.jsonl").read_text(encoding="utf-8").splitlines()[:REQUESTS]
    prompts = [target.prompt(json.loads(line)["prompt"]) for line in lines]
    rows = []
    for temperature in (0.0, 1.0):
        result = replayed(target, draft, prompts, temperature)
        figures = (result.rate, result.length, *result.by_position)
        rows.append((f"{temperature:g}", *(f"{figure:.3f}" for figure in figures)))
    print(table(("temperature", "accepted / drafted", "tokens a round", *map(str, range(1, TOKENS + 1))), rows))


def replayed(target: Target, draft: Target, prompts: list[list[int]], temperature: float) -> Acceptance:
    parts = []
    for start in range(0, len(prompts), TOGETHER):
        some = prompts[start : start + TOGETHER]
        answers = [answer.tokens for answer in target.answer(some, temperature, ANSWER + TOKENS, SEED + start)]
        parts.append(
            replay_acceptance(
                target, draft, [AnsweredPrompt(*pair, temperature) for pair in zip(some, answers, strict=True)]
            )
        )
    return acceptance.total(parts)


def replay_acceptance(target: Target, draft: Target, answered_prompts: list[AnsweredPrompt]) -> Acceptance:
    tokens, _, real = padded(answered_prompts)
    theirs, own = (model.logits(model.states(tokens, real)[0]).flatten(0, 1) for model in (target, draft))
    following = torch.cat([tokens[:, 1:], tokens[:, -1:]], 1).flatten()
    warm = torch.full((tokens.numel(),), answered_prompts[0].temperature)
    accepted = acceptance.acceptance_probability(following, own, theirs, warm, certain=False).view(tokens.shape)
    begins = torch.tensor([len(pair.prompt) for pair in answered_prompts])
    ends = torch.tensor([len(pair.prompt) + len(pair.answer) - 1 for pair in answered_prompts])
    return acceptance.walk(acceptance.chained(accepted, TOKENS), begins, ends)


if __name__ == "__main__":
    main()
