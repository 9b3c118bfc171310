"""The losses against double precision, their properties, and their mean through a head whose logits are never all in
memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.recipe.draft_training import LOSS_NAMES
from backend.engines.drafts import losses
from backend.engines.drafts.losses import LOSSES
from tests.properties import examples

SIZE = 7


def _reference(name: str, target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """By the definitions, in double precision."""
    p, q = target.double().softmax(-1), draft.double().softmax(-1)
    alpha = torch.minimum(p, q).sum(-1)
    forward, reverse = (p * (p / q).log()).sum(-1), (q * (q / p).log()).sum(-1)
    middle = (p + q) / 2
    weight = torch.exp(-3 * alpha)
    return {
        "kl": forward,
        "rkl": reverse,
        "tv": 0.5 * (p - q).abs().sum(-1),
        "nla": -alpha.log(),
        "jsd": 0.5 * ((p * (p / middle).log()).sum(-1) + (q * (q / middle).log()).sum(-1)),
        "ce": -q.log()[..., torch.arange(len(target)), target.argmax(-1)]
        if target.ndim == 1
        else -q.gather(-1, target.argmax(-1, keepdim=True)).squeeze(-1).log(),
        "lk_hybrid": weight * forward + (1 - weight) * (1 - alpha),
    }[name]


def logits(limit: float) -> Any:
    return st.lists(st.lists(st.floats(-limit, limit, width=32), min_size=SIZE, max_size=SIZE), min_size=2, max_size=2)


def test_every_loss_that_can_be_asked_for_is_there() -> None:
    assert tuple(LOSSES) == LOSS_NAMES


@pytest.mark.parametrize("name", LOSS_NAMES)
@given(rows=logits(8.0))
@examples(200)
def test_losses_are_their_definitions(name: str, rows: list[list[float]]) -> None:
    target, draft = torch.tensor(rows)[:, None]
    result = LOSSES[name](target, draft)
    assert result.shape == (1,)
    assert float(result) == pytest.approx(float(_reference(name, target, draft)), abs=2e-5, rel=1e-4)


@pytest.mark.parametrize("name", LOSS_NAMES)
@given(rows=logits(60.0))
@examples(200)
def test_losses_are_not_below_zero_and_have_finite_gradients(name: str, rows: list[list[float]]) -> None:
    target, draft = torch.tensor(rows)
    draft.requires_grad_()
    total = LOSSES[name](target[None], draft[None]).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert float(total.detach()) >= 0
    assert draft.grad is not None
    assert bool(draft.grad.isfinite().all())


@pytest.mark.parametrize("name", sorted(set(LOSS_NAMES) - {"ce"}))
@given(rows=logits(30.0))
@examples(100)
def test_losses_are_zero_where_both_agree(name: str, rows: list[list[float]]) -> None:
    same = torch.tensor(rows[:1])
    assert float(LOSSES[name](same, same + 3.0)) == pytest.approx(0.0, abs=3e-6)  # a constant changes no distribution


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_descent_by_each_loss_raises_the_overlap(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(4, 20, generator=generator), torch.randn(4, 20, generator=generator).requires_grad_()
    before = float(losses.overlap(target, draft.detach()).mean())
    for _ in range(20):
        (gradient,) = torch.autograd.grad(LOSSES[name](target, draft).mean(), draft)
        draft = (draft - 1.0 * gradient).detach().requires_grad_()
    assert float(losses.overlap(target, draft.detach()).mean()) > before


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["kl", "lk_hybrid"])
def test_the_mean_through_a_head_is_that_of_all_logits_at_once(name: str, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = 2 * losses.ROWS + 5
    states = torch.randn(rows, 6, generator=generator).requires_grad_()
    head, required = (
        torch.randn(11, 6, generator=generator).requires_grad_(),
        torch.randn(rows, 11, generator=generator),
    )
    weights = torch.rand(rows, generator=generator) if weighted else None
    each = LOSSES[name](required, states @ head.T)
    whole = each.mean() if weights is None else (each * weights).sum() / weights.sum()
    expected = torch.autograd.grad(2 * whole, (states, head))
    result = losses.through_head(states, head, lambda part: required[part], LOSSES[name], weights)
    assert float(result.detach()) == pytest.approx(float(whole.detach()), rel=1e-5)
    for one, other in zip(torch.autograd.grad(2 * result, (states, head)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
