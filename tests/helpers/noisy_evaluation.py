"""An evaluation too noisy for a verdict."""

from __future__ import annotations

from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.soundness import SHARED_PROCESSORS
from tests import simulated

BUSY = "The machine was not quiet in 2 of 2 levels: small differences may be chance."


def noisy() -> Evaluation:
    evaluation = simulated.evaluation(names=("original", "a"), speeds=(1.0, 1.05), levels=(1,), noise=0.1)
    return evaluation.model_copy(update={"warnings": [BUSY, SHARED_PROCESSORS]})
