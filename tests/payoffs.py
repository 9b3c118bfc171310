"""Payoff maps of known costs: for tests of what follows from them. Not measurements."""

from __future__ import annotations

from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import DraftShape, MapKey, PayoffMap, PayoffPoint, StepCosts
from backend.domain.recipe.recipe import ORIGINAL, Serving
from tests.small_artifacts import CARD

TARGET = CARD.model_copy(
    update={
        "id": "smollm",
        "hidden_size": 576,
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "vocabulary": 49_152,
        "parameters": 134_515_008,
        "revision": "revision",
    }
)
SMALL = DraftShape(parameters=5_000_000, layers=2)
COSTS = StepCosts(
    base=((1, 0.030), (4, 0.036), (8, 0.044), (16, 0.060)),
    coefficients=(2e-3, 1e-4, 1e-3, 4e-4, 2e-10, 5e-12, 1e-4, 0.0, 0.0, 8e-4, 0.0, 0.0),
)
SERVERS = (
    (2, DraftShape(parameters=4_900_000, layers=1)),
    (7, DraftShape(parameters=4_900_000, layers=1)),
    (3, DraftShape(parameters=11_300_000, layers=4)),
    (6, DraftShape(parameters=11_300_000, layers=4)),
    (2, DraftShape(parameters=20_500_000, layers=2)),
    (7, DraftShape(parameters=20_500_000, layers=2)),
)
KEY = MapKey(
    model="revision",
    weights=draft_payoff.weights_hash(ORIGINAL),
    serving=Serving(),
    vllm="0.32.0",
    processor="a processor",
    cores=2,
)


def points(costs: StepCosts = COSTS) -> tuple[PayoffPoint, ...]:
    """What servers of those costs would be measured to do."""
    plain = [PayoffPoint(streams=streams, step_s=seconds, rounds=3) for streams, seconds in costs.base]
    drafted = [
        PayoffPoint(
            streams=streams,
            tokens=tokens,
            draft=draft,
            step_s=costs.step(streams, tokens, draft),
            relative=costs.step(streams, tokens, draft) / seconds,
            factor=1.02,
            accepted=1.0,
            rounds=3,
        )
        for tokens, draft in SERVERS
        for streams, seconds in costs.base
    ]
    return (*plain, *drafted)


def payoff_map(
    key: MapKey = KEY, *, model: str = "smollm", error: float | None = 1.08, costs: StepCosts = COSTS
) -> PayoffMap:
    return PayoffMap(
        key=key,
        model=model,
        parameters=TARGET.parameters,
        points=points(costs),
        costs=costs,
        error=error,
        measured_at="2026-11-23T12:00:00+00:00",
        seconds=640.0,
    )
