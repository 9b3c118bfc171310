"""Compares two models' logits at the same positions: losses, KL divergence, whether the most probable token agrees.

Everything over the vocabulary is fp32, in buffers that are allocated once: large temporaries would go back to the
system each time. All sums are of positive or centred terms, so that nothing cancels; results per row are in double
precision. Knows tensors, and nothing of models or texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

NUMBERS = 1 << 18
"""Numbers in a buffer of some rows over the whole vocabulary: three buffers fit into a processor's cache."""
NUMBERS_CUDA = 1 << 26
FAR = 60.0
"""Difference of the two models' logits of one token, in nats, above which a row is computed in double precision."""


class Position(NamedTuple):
    """The figures of one position, in this order, as a row of doubles."""

    before: float
    """Negative log-likelihood of the next token under the original, nats."""
    after: float
    """The same under the candidate."""
    kl: float
    """KL(original || candidate) over the whole vocabulary, nats."""
    same: float
    """1 where both have the same most probable token, else 0."""


class LogitComparer:
    """Compares logits over one vocabulary on one device."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        import torch

        numbers = NUMBERS if device.type == "cpu" else NUMBERS_CUDA
        self.rows = max(1, numbers // vocabulary)
        self._p, self._d, self._t = (torch.empty(self.rows, vocabulary, device=device) for _ in range(3))

    def positions(self, reference: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the fields of `Position` for each position [positions, 4], double.

        `reference` and `logits` are [positions, vocabulary] fp32, `targets` [positions].
        """
        import torch

        rows = torch.empty(len(targets), len(Position._fields), dtype=torch.float64, device=targets.device)
        for start in range(0, len(targets), self.rows):
            part = slice(start, start + self.rows)
            rows[part] = self._compare_rows(reference[part], logits[part], targets[part])
        return rows

    def _compare_rows(self, a: torch.Tensor, b: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compare a few rows, by a formula that does not cancel.

        With d = b - a, c = E[d] and x = d - c, expectations under the original: KL = log E[e^x] =
        log(1 + E[e^x - 1 - x]), of which every term is at least 0; the candidate's log-sum-exp is the original's + c +
        KL.
        """
        import torch

        # 1. Whether both have the same most probable token.
        p, d, t = (buffer[: len(a)] for buffer in (self._p, self._d, self._t))
        top_a, top_b = a.amax(-1), b.amax(-1)
        same = torch.add(a, b, out=t).amax(-1) == top_a + top_b

        # 2. KL divergence. `whole` is 1 except for rounding in softmax; dividing by it is more exact.
        torch.softmax(a, -1, out=p)
        whole = p.sum(-1).double()
        torch.sub(b, a, out=d)
        centre = (torch.mul(p, d, out=t).sum(-1).double() / whole).float()
        d.sub_(centre[:, None])
        far = d.amax(-1) > FAR
        torch.expm1(d, out=t).sub_(d).mul_(p)
        kl = (t.sum(-1).double() / whole).log1p()

        # 3. Losses of the next token.
        norm = top_a.double() - (p.amax(-1).double() / whole).log()
        picked = targets[:, None]
        before = norm - a.gather(1, picked)[:, 0].double()
        after = norm + centre.double() + kl - b.gather(1, picked)[:, 0].double()

        # 4. Rows that fp32 cannot hold, in double precision.
        rows = torch.stack([before, after, kl, same.double()], 1)
        if bool(far.any()):
            rows[far] = positions_in_doubles(a[far], b[far], targets[far])
        return rows


def positions_in_doubles(reference: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compare rows by the definitions, all in double precision."""
    import torch

    log_p, log_q = reference.double().log_softmax(-1), logits.double().log_softmax(-1)
    picked = targets[:, None]
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    same = (log_p.argmax(-1) == log_q.argmax(-1)).double()
    return torch.stack([-log_p.gather(1, picked)[:, 0], -log_q.gather(1, picked)[:, 0], kl, same], 1)
