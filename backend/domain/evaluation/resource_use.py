"""Resources that serving uses, as an evaluation document records them: energy and bytes read. Pure data."""

from __future__ import annotations

from backend.domain.frozen import Frozen


class Energy(Frozen):
    """Joules over all repeats of a level, warm-up included, by counter, and the output tokens of that time."""

    joules: dict[str, float]
    output_tokens: int

    @property
    def total(self) -> float:
        return sum(self.joules.values())

    @property
    def joules_per_output_token(self) -> float | None:
        """None where no token was counted."""
        return self.total / self.output_tokens if self.output_tokens > 0 else None


class StepBytes(Frozen):
    """Bytes that one step reads: `weights` once, without an embedding that is only looked up, and `cache_a_token` for
    each token of each stream's context."""

    weights: int
    cache_a_token: int
