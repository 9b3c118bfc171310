"""Losses of a draft: how far its next-token distribution q is from the target's p, one figure per position.

Every function takes logits of the target and of the draft [..., V] over one vocabulary and answers with [...] in fp32;
none is below zero, and all but `ce` are zero where both agree. `OVERLAP` alpha = sum of min(p, q) is the probability
that a sampled proposal is accepted (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5). Pure: knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backend.domain.needs.draft_training_needs import ROWS

if TYPE_CHECKING:
    import torch

Loss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
LEAST_OVERLAP = 1e-5
"""Smallest overlap that `nla` uses, so that its gradient stays finite."""
ETA = 3.0
"""Parameter of `lk_hybrid`: the best that its authors tried."""


def kl(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """KL(p || q) in nats: Hinton et al. 2015 (arXiv 1503.02531), at temperature 1. Covers all that the target may
    say."""
    p, q = _log(target), _log(draft)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0)


def rkl(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """KL(q || p) in nats: MiniLLM (Gu et al. 2023, arXiv 2306.08543), section 2.1. Seeks what the target says most."""
    p, q = _log(target), _log(draft)
    return (q.exp() * (q - p)).sum(-1).clamp_min(0.0)


def jsd(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon divergence in nats, at most ln 2 (Lin 1991; the generalized one of GKD, Agarwal et al. 2023, arXiv
    2306.13649, section 2, at beta 1/2)."""
    import torch

    p, q = _log(target), _log(draft)
    middle = torch.logaddexp(p, q) - math.log(2.0)
    return (0.5 * (p.exp() * (p - middle) + q.exp() * (q - middle)).sum(-1)).clamp_min(0.0)


def tv(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Total variation 1 - alpha, the share of proposals that are refused: DistillSpec (Zhou et al. 2023, arXiv
    2310.08461), section 4. Its gradient vanishes where both hardly overlap."""
    return (1.0 - overlap(target, draft)).clamp_min(0.0)


def ce(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """-ln q of the target's most probable token: the control, which knows one token of the target's distribution."""
    return -_log(draft).gather(-1, target.argmax(-1, keepdim=True)).squeeze(-1)


def nla(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """-ln alpha: LK losses (Samarin et al. 2026, arXiv 2602.23881). The gradient of `tv`, divided by alpha."""
    return -overlap(target, draft).clamp(LEAST_OVERLAP, 1.0).log()


def lk_hybrid(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """w KL(p || q) + (1 - w) (1 - alpha) with w = exp(-3 alpha), held fixed: the same authors' hybrid objective, KL
    while both hardly overlap and total variation later."""
    alpha = overlap(target, draft)
    weight = (-ETA * alpha.detach()).exp()
    return weight * kl(target, draft) + (1.0 - weight) * (1.0 - alpha).clamp_min(0.0)


LOSSES: dict[str, Loss] = {"kl": kl, "rkl": rkl, "jsd": jsd, "tv": tv, "ce": ce, "nla": nla, "lk_hybrid": lk_hybrid}


def overlap(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Compute alpha: the sum of min(p, q)."""
    import torch

    return torch.minimum(_log(target).exp(), _log(draft).exp()).sum(-1)


def _log(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1)


def through_head(
    states: torch.Tensor,
    weight: torch.Tensor,
    target: Callable[[slice], torch.Tensor],
    loss: Loss,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mean loss of the logits `states` [N, h] @ `weight` [V, h]' against `target` of rows (logits [n, V]).

    `ROWS` at a time: neither all logits nor their gradients are ever in memory. `weights` [N] are those of the
    positions; None: all alike. The result is a scalar in fp32 whose gradient reaches `states` and `weight`. Products
    are in the dtype that autocast says.
    """
    return _function().apply(states, weight, target, loss, weights)  # type: ignore[no-any-return]


def _function() -> Any:
    import torch

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, states: torch.Tensor, weight: torch.Tensor, target: Any, loss: Any, weights: Any
        ) -> torch.Tensor:
            # 1. Room for the gradients, and the head rounded once for all parts.
            own, into = torch.empty_like(states), torch.zeros_like(weight) if weight.requires_grad else None
            whole = float(len(states)) if weights is None else float(weights.sum())
            device = states.device.type
            rounded = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
            once = weight.detach().to(rounded)  # autocast would round it again for each part

            # 2. Loss and gradient of some rows at a time; their logits are freed with them.
            total = torch.zeros((), dtype=torch.float32, device=states.device)
            for start in range(0, len(states), ROWS):
                rows = slice(start, start + ROWS)
                part, head = states[rows].detach().requires_grad_(), once.detach().requires_grad_(into is not None)
                with torch.enable_grad():
                    losses = loss(target(rows), part @ head.T)
                    losses = (losses if weights is None else losses * weights[rows]).sum() / whole
                sought = (part,) if into is None else (part, head)
                gradients = torch.autograd.grad(losses, sought)
                own[rows] = gradients[0]
                if into is not None:
                    into += gradients[1]
                total += losses.detach()
            ctx.save_for_backward(own, *(() if into is None else (into,)))
            return total

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> Any:
            own, *into = ctx.saved_tensors
            return own * outer[0], into[0] * outer[0] if into else None, None, None, None

    return Through
