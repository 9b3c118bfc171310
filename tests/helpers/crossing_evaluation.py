"""A simulated evaluation in which the best variant depends on the load."""

from __future__ import annotations

from backend.domain.evaluation.document import Evaluation
from tests import simulated

LEVELS = (1, 2, 4, 8)


def crossing(*, levels: tuple[int, ...] = LEVELS) -> Evaluation:
    """Return an evaluation in which `low` is ahead at 1 and 2 streams, `high` at 4 and 8, and `slow` nowhere."""
    speeds = {"original": (1.0,) * 4, "low": (2.0, 1.5, 0.8, 0.5), "high": (0.9, 1.2, 1.4, 1.6), "slow": (0.5,) * 4}
    document = simulated.evaluation(names=list(speeds), speeds=(1.0,) * 4, levels=levels, noise=0.0)
    variants = []
    for result in document.variants:
        rows = [simulated.level(streams, speeds[result.name][LEVELS.index(streams)], noise=0.001) for streams in levels]
        variants.append(result.model_copy(update={"levels": rows}))
    return document.model_copy(update={"variants": variants})
