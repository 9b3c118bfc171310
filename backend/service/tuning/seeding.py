"""The order in which a search begins: what this machine has measured before comes first.

An estimate that was corrected by an evaluation of the same stack, or that a payoff map of its draft gives, is known.
Those that are known change places among each other by their expected speed; the others keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from backend.domain.errors import WhetstoneError
from backend.domain.model.facts import ModelFacts
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.stacks import WEIGHTS, Stack
from backend.service.plans import cases, estimates
from backend.service.workspace import Workspace


def order_by_records(
    workspace: Workspace, model: ModelFacts, request: TuneRequest, stacks: Sequence[Stack]
) -> list[Stack]:
    """Return the stacks in the order in which they are tried first."""
    rates = {
        stack.key: rate
        for stack in stacks
        if not stack.settings and (rate := known_rate(workspace, model, request, stack)) is not None
    }
    return exchange(stacks, rates)


def exchange(stacks: Sequence[Stack], rates: Mapping[str, float]) -> list[Stack]:
    """Return the stacks, those with a rate (by key) sorted among the places that they have, the fastest first."""
    known = iter(sorted((stack for stack in stacks if stack.key in rates), key=lambda stack: -rates[stack.key]))
    return [next(known) if stack.key in rates else stack for stack in stacks]


def known_rate(workspace: Workspace, model: ModelFacts, request: TuneRequest, stack: Stack) -> float | None:
    """Return the expected tokens/s, the geometric mean over the loads; None where nothing was measured."""
    # 1. The recipe on its engine.
    recipe = WEIGHTS[stack.weights].recipe
    recipe = recipe.model_copy(update={"serving": recipe.serving.on_engine(stack.engine)})
    loads = [ExpectedLoad(output_tokens=request.max_tokens, concurrency=streams) for streams in request.streams]
    try:
        expected = estimates.estimate_loads(workspace, cases.resolve(workspace, model, recipe), loads)
    except WhetstoneError:
        return None
    # 2. What was measured of it.
    rates = [
        fmean(one.output_tokens_per_s)
        for one in expected
        if one.output_tokens_per_s and (one.mapped or (one.calibration and not one.calibration.of_original))
    ]
    return math.exp(fmean(map(math.log, rates))) if len(rates) == len(loads) else None
