"""The portfolio: the best path is found, switches lie between measured levels, and limits leave variants out."""

from __future__ import annotations

import math
from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from backend.domain.limits.slo import Slo
from backend.domain.what_if.portfolio import (
    SWITCH_COST,
    Portfolio,
    StreamRange,
    SwitchPoint,
    choose_variant,
    find_path,
    make_portfolio,
)
from backend.present import portfolio_words
from tests import simulated
from tests.helpers.crossing_evaluation import crossing


def test_each_load_has_its_best_variant_and_one_switch_between() -> None:
    portfolio = make_portfolio(crossing(), Slo())
    assert portfolio is not None
    assert portfolio.ranges == (
        StreamRange(variant="low", first=1, last=2),
        StreamRange(variant="high", first=4, last=8),
    )
    assert portfolio.switches == (SwitchPoint(below="low", above="high", down=2, up=4),)
    assert portfolio.best_single == "high" and portfolio.gain is not None and 1.15 < portfolio.gain < 1.5
    assert portfolio.least is not None and portfolio.least >= 1
    sentence = portfolio_words.sentence(portfolio)
    assert sentence.startswith("Serve `low` at 1 to 2 streams and `high` at 4 to 8 streams. Over the measured loads")


def test_between_the_sides_of_a_switch_the_last_one_goes_on() -> None:
    portfolio = make_portfolio(crossing(), Slo())
    assert portfolio is not None
    up = [choose_variant(portfolio, streams, "low") for streams in range(1, 6)]
    down = [choose_variant(portfolio, streams, "high") for streams in range(1, 6)]
    assert up == ["low", "low", "low", "high", "high"]
    assert down == ["low", "low", "high", "high", "high"]
    assert choose_variant(portfolio, 3) == "low" and choose_variant(portfolio, 10_000, "low") == "high"


def test_limits_and_floor_leave_variants_out_with_the_reason() -> None:
    document = crossing()
    # 1. A floor: `low` loses too much, `high` was not scored.
    scored = {"low": 0.2, "slow": 0.001}
    variants = [
        result.model_copy(update={"quality": simulated.quality(scored[result.name]) if result.name in scored else None})
        for result in document.variants
    ]
    portfolio = make_portfolio(document.model_copy(update={"variants": variants}), Slo(), max_kl=0.01)
    assert portfolio is not None and {part.variant for part in portfolio.ranges} == {"original"}
    assert portfolio.left_out["high"] == "its quality was not measured"
    assert portfolio.left_out["low"] == "its KL divergence is 0.2, over 0.01"
    assert "original` is the best choice at every load" in portfolio_words.sentence(portfolio)
    # 2. A limit that nobody meets at 8 streams.
    limited = make_portfolio(document, Slo(ttft_ms=150.0))
    assert limited is not None and limited.unserved == (8,)
    assert portfolio_words.note_sentences(limited)[0] == "No variant is within your limits at 8 streams."
    # 3. One level, and limits that nobody meets.
    assert make_portfolio(crossing(levels=(4,)), Slo()) is None
    assert make_portfolio(document, Slo(ttft_ms=0.1)) is None


@given(
    st.integers(1, 4).flatmap(
        lambda variants: st.lists(
            st.lists(st.floats(1.0, 100.0), min_size=variants, max_size=variants), min_size=1, max_size=5
        )
    )
)
def test_no_path_is_better_than_the_one_found(rates: list[list[float]]) -> None:
    levels = list(range(len(rates)))
    by_variant = {f"v{index}": {level: row[index] for level, row in enumerate(rates)} for index in range(len(rates[0]))}

    def total(path: list[str]) -> float:
        gains = sum(math.log(by_variant[name][level]) for level, name in enumerate(path))
        return gains - SWITCH_COST * sum(one != other for one, other in pairwise(path))

    reached = total(find_path(levels, by_variant))
    best = max(total(list(path)) for path in product(by_variant, repeat=len(levels)))
    assert math.isclose(reached, best, abs_tol=1e-9)


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5), st.integers(0, 40))
def test_the_choice_is_always_of_the_ranges_beside_the_load(names: list[str], streams: int) -> None:
    distinct = [name for index, name in enumerate(names) if index == 0 or name != names[index - 1]]
    ranges = tuple(StreamRange(variant=name, first=4 * n + 1, last=4 * n + 2) for n, name in enumerate(distinct))
    switches = tuple(
        SwitchPoint(below=low.variant, above=high.variant, down=low.last, up=high.first)
        for low, high in pairwise(ranges)
    )
    portfolio = Portfolio(ranges=ranges, switches=switches, best_single=None, gain=None, least=None)
    for serving in (None, *distinct):
        chosen = choose_variant(portfolio, streams, serving)
        near = {part.variant for part in ranges if part.first - 3 <= streams <= part.last + 3}
        assert chosen in (near or {ranges[-1].variant})
