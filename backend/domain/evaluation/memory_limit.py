"""How far a variant is from what its memory allows: the time in which the bytes of one step can be read at all. Pure.

One step makes a token for each stream. It reads every weight once, whatever the streams, and the keys and values of
each stream's context (roofline: Williams et al. 2009; of decoding: Pope et al. 2022, section 2). What is left is
computing, waiting, overhead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.domain.frozen import Frozen

if TYPE_CHECKING:
    from backend.domain.evaluation.document import Level

BANDWIDTH = "memory_read_bytes_per_s"
"""Of an evaluation's `hardware`: what all cores together read, measured there by `hardware.processor_speed`."""


class StepBytes(Frozen):
    """What one step reads: `weights` once, without an embedding that is only looked up, and `cache_a_token` of each
    stream's context."""

    weights: int
    cache_a_token: int


def limit_ms(step: StepBytes, level: Level, bandwidth: float) -> float:
    """Least milliseconds a token of that level, each stream half way through its answer; `bandwidth` in bytes a
    second."""
    context = (level.input_tokens or 0) + (level.output_tokens or 0) / 2
    return 1e3 * (step.weights + level.concurrency * context * step.cache_a_token) / bandwidth


def times_the_limit(step: StepBytes | None, level: Level, bandwidth: float | None) -> float | None:
    """Median time a token over the least possible; None where one of them is not known, or several tokens come in a
    step."""
    if step is None or not bandwidth or level.tpot_ms is None or level.acceptance_rate is not None:
        return None
    return level.tpot_ms.p50 / limit_ms(step, level, bandwidth)
