"""Compares the time per token with the least that memory allows: the time to read the bytes of one step. Pure.

One step makes a token for each stream. It reads every weight once, whatever the number of streams, and the keys and
values of each stream's context (roofline: Williams et al. 2009; of decoding: Pope et al. 2022, section 2). The rest of
the time is computing, waiting and overhead.
"""

from __future__ import annotations

from backend.domain.evaluation.document import Level
from backend.domain.evaluation.resource_use import StepBytes

BANDWIDTH = "memory_read_bytes_per_s"
"""Key in an evaluation's `hardware`: bytes per second that all cores together read, measured by `hardware.speed`."""


def limit_ms(step: StepBytes, level: Level, bandwidth: float) -> float:
    """Least milliseconds per token at this level, each stream half way through its answer; `bandwidth` in bytes per
    second."""
    context = (level.input_tokens or 0) + (level.output_tokens or 0) / 2
    return 1e3 * (step.weights + level.concurrency * context * step.cache_a_token) / bandwidth


def times_the_limit(step: StepBytes | None, level: Level, bandwidth: float | None) -> float | None:
    """Median time per token over the least possible. None where a part is unknown or one step makes several tokens."""
    if step is None or not bandwidth or level.tpot_ms is None or level.acceptance_rate is not None:
        return None
    return level.tpot_ms.p50 / limit_ms(step, level, bandwidth)
