"""Rejection sampling that draws noise for refused tokens alone: what it says has the target's own distribution."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backend.serving.vllm_plugin.whetstone_vllm import sparing

VOCABULARY, REQUESTS = 5, 4000


def draw(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """As vLLM's fused_gumbel_argmax: by the Gumbel trick, each row by its own seed."""
    noise = torch.stack(
        [torch.rand(logits.shape[1], generator=torch.Generator().manual_seed(int(seed))) for seed in seeds]
    )
    return (logits - (-noise.log()).log()).argmax(-1)


def uniform(tokens: int, drafts: list[int], generators: dict[int, torch.Generator], device: Any) -> torch.Tensor:
    return torch.rand(tokens, dtype=torch.float64)


def refuse(*arguments: Any) -> torch.Tensor:
    raise AssertionError("vLLM's own was called")


def sampled(
    drafted: list[list[int]],
    logits: torch.Tensor,
    *,
    q: torch.Tensor | None = None,
    bonus: list[int] | None = None,
    temperature: list[float] | None = None,
    own: dict[int, torch.Generator] | None = None,
    **options: Any,
) -> list[list[int]]:
    """Of each request the tokens that are said; `logits` and `q` have a row for each drafted token."""
    counts = [len(each) for each in drafted]
    heat = torch.tensor(temperature or [1.0] * len(counts))
    metadata = SimpleNamespace(
        all_greedy=bool((heat == 0).all()), all_random=bool((heat > 0).all()), temperature=heat, generators=own or {}
    )
    result = sparing(options.pop("plain", refuse), uniform, draw)(
        torch.tensor([token for each in drafted for token in each], dtype=torch.int32),
        counts,
        max(counts),
        torch.tensor(counts).cumsum(0),
        q,
        logits,
        torch.tensor(bonus or [9] * len(counts)).unsqueeze(1),
        metadata,
        **options,
    )
    return [[token for token in row if token >= 0] for row in result.tolist()]


@pytest.mark.parametrize("sampling_draft", [False, True])
def test_the_first_token_has_the_targets_distribution_whatever_was_drafted(sampling_draft: bool) -> None:
    torch.manual_seed(0)
    p, q = (torch.rand(VOCABULARY).softmax(0) for _ in range(2))
    p = (p * torch.tensor([3.0, 1, 1, 0.2, 1])) / (p * torch.tensor([3.0, 1, 1, 0.2, 1])).sum()
    drafted = torch.multinomial(q, REQUESTS, replacement=True) if sampling_draft else torch.full((REQUESTS,), 3)
    rows = p.log().expand(REQUESTS, -1).clone()
    message = sampled([[int(token)] for token in drafted], rows, q=q.expand(REQUESTS, -1) if sampling_draft else None)
    counts = torch.tensor([row[0] for row in message]).bincount(minlength=VOCABULARY)
    chi = float(((counts - REQUESTS * p) ** 2 / (REQUESTS * p)).sum())
    assert chi < 18.5  # 99.9 % of chi square with 4 degrees of freedom
    accepted = [row for row in message if len(row) == 2]
    likely = float(torch.minimum(p, q).sum()) if sampling_draft else float(p[3])
    assert len(accepted) / REQUESTS == pytest.approx(likely, abs=0.03)
    assert {row[1] for row in accepted} == {9}


def test_drafts_after_a_refused_token_are_dropped_and_draftless_requests_go_on() -> None:
    certain = torch.full((3, VOCABULARY), -30.0)
    certain[0, 1] = certain[1, 2] = certain[2, 4] = 30.0
    assert sampled([[1, 3, 4], []], certain, bonus=[7, 8]) == [[1, 2], [8]]
    assert sampled([[], [1, 2, 4]], certain, bonus=[7, 8]) == [[7], [1, 2, 4, 8]]


def test_requests_at_temperature_0_beside_others_keep_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 0.1, 0, 0, 0], [0.0, 0, 0, 0.1, 0], [-30.0, -30, 30, -30, -30]])
    assert sampled([[1, 2], [2]], logits, temperature=[0.0, 1.0]) == [[1, 3], [2, 9]]


def test_a_request_with_a_seed_says_the_same_again() -> None:
    logits = torch.zeros(1, 4096)
    again = [sampled([[5]], logits, own={0: torch.Generator().manual_seed(3)}) for _ in range(2)]
    other = sampled([[5]], logits, own={0: torch.Generator().manual_seed(4)})
    assert again[0] == again[1] != other


def test_all_else_is_vllms_own() -> None:
    own = torch.tensor([[4, -1]])
    for options in ({"temperature": [0.0]}, {"synthetic_mode": True}, {"use_fp64_gumbel": True}):
        assert sampled([[1]], torch.zeros(1, VOCABULARY), plain=lambda *items: own, **options) == [[4]]
