"""Trials of stacks as an evaluation would give them."""

from __future__ import annotations

from typing import Any

from backend.domain.tuning.trials import Trial, TrialLevel


def trial(key: str, tokens_per_s: float = 40.0, **fields: Any) -> Trial:
    """Return a trial at 1 and 8 streams; TTFT at 8 streams is `ttft_ms`."""
    ttft_ms, kl = fields.pop("ttft_ms", 200.0), fields.pop("kl", 0.01)
    levels = tuple(
        TrialLevel(
            streams=streams,
            tokens_per_s=tokens_per_s * streams**0.5,
            ttft_ms=ttft_ms * streams / 8,
            tpot_ms=20.0,
            latency_ms=1000 * 32 * streams**0.5 / tokens_per_s,
        )
        for streams in (1, 8)
    )
    shown = {"name": key, "evaluation": "e-1", "round": "screen", "blocks": 1, "levels": levels, "kl": kl}
    return Trial.model_validate({"key": key, **shown, **fields})
