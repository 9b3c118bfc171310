"""The grid of verdicts: every level says the word of its test, and never more than was tested."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.results import verdict_grid
from backend.domain.evaluation.comparison import SIGNIFICANCE, compare
from backend.domain.evaluation.document import Comparison, Evaluation
from backend.domain.evaluation.outcome import EQUIVALENCE, Outcome, significance_outcome, verdict_kind
from backend.domain.load.load import Load
from backend.present.words.verdicts import GridCell, grid_rows
from tests.simulated import evaluation, level, result


def cells(document: Evaluation, name: str) -> dict[int | float, GridCell]:
    """By streams."""
    return next(
        {load.value: cell for load, cell in row.cells.items()} for row in grid_rows(document) if row.name == name
    )


def compared(**fields: Any) -> Evaluation:
    variants = [result("original", [level(4)]), result("other", [level(4, 1.5, **fields)])]
    return evaluation().model_copy(update={"variants": variants, "comparison": compare(variants)})


def test_the_baseline_comes_first_with_its_figure_and_every_row_has_its_quality() -> None:
    first, *others = grid_rows(evaluation())
    assert first.name == "original"
    assert all(cell.kind == "baseline" and cell.words.endswith("tokens/s") for cell in first.cells.values())
    assert all("KL" in row.quality for row in others)
    assert {row.quality for row in grid_rows(evaluation(with_quality=False))} == {"quality not measured"}


def test_faster_slower_and_no_difference_are_said_with_their_intervals() -> None:
    document = evaluation(names=["original", "fast", "slow", "same"], speeds=[1, 2, 0.5, 1.0], levels=[4])
    assert cells(document, "fast")[4].kind == "faster"
    assert cells(document, "fast")[4].words.endswith("x faster")
    assert cells(document, "slow")[4].kind == "slower"
    factor, _, words = cells(document, "slow")[4].words.partition("x ")
    assert float(factor) > 1
    assert words == "slower"
    assert cells(document, "same")[4].words.startswith("the same within ")
    assert all(cells(document, name)[4].interval.startswith("(") for name in ("fast", "slow", "same"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"repeats": 3}, "no verdict"),
        ({"client_limited": True}, "not comparable"),
        ({"invocation_errors": 30, "invocations": 100}, "not comparable"),
    ],
)
def test_what_stands_in_the_way_is_said_instead_of_a_ratio(fields: dict[str, Any], words: str) -> None:
    assert cells(compared(**fields), "other")[4] == GridCell("none", words)


def test_too_few_repeats_and_levels_without_a_rival_have_no_verdict() -> None:
    document = evaluation(names=["original", "other"], speeds=[1, 2], repeats=3)
    assert cells(document, "other")[4] == GridCell("none", "too few repeats")
    lonely = [result("original", [level(4)]), result("other", [level(8)])]
    alone = document.model_copy(update={"variants": lonely, "comparison": compare(lonely)})
    assert cells(alone, "other")[8].words.endswith("tokens/s")
    table = verdict_grid.rows_by_variant(grid_rows(alone), [Load("closed", n) for n in (4, 8)])
    assert table[1]["4 streams"] == "–"


def test_a_latency_that_was_decided_the_other_way_is_not_hidden() -> None:
    document = evaluation(names=["original", "fast"], speeds=[1, 2], levels=[4])
    rows = [
        row.model_copy(update={"ratio": 1.5, "ci95": (1.4, 1.6), "p_value": 0.001, "outcome": "worse"})
        if row.metric.startswith("ttft")
        else row
        for row in document.comparison
    ]
    cell = cells(document.model_copy(update={"comparison": rows}), "fast")[4]
    assert (cell.kind, cell.but) == ("faster", "but TTFT 1.50x slower")


@given(st.floats(0.01, 100), st.floats(1.0001, 3), st.floats(0, 1))
def test_the_word_is_the_tests_and_the_interval_encloses_the_factor(ratio: float, width: float, p: float) -> None:
    apart = max(ratio * width, width / ratio) - 1
    not_significant: Outcome = "same" if apart <= EQUIVALENCE else "undecided"
    row = Comparison(
        load=Load("closed", 4),
        metric="output_tokens_per_s",
        baseline="original",
        variant="other",
        ratio=ratio,
        ci95=(ratio / width, ratio * width),
        p_value=p,
        why=None,
        outcome=significance_outcome(True, ratio > 1) if p <= SIGNIFICANCE else not_significant,
    )
    cell = cells(compared().model_copy(update={"comparison": [row]}), "other")[4]
    assert cell.kind == verdict_kind(row.outcome, None)
    assert (cell.words == "too noisy to tell") is (cell.kind == "noisy")
    assert ("faster" in cell.words) is (cell.kind == "faster")


def test_a_grid_of_many_levels_goes_down_with_quality_first_and_inert_names() -> None:
    document = evaluation(names=["original", "**w** $x$"], speeds=[1, 2], levels=[1, 2, 4, 8, 16])
    first, *rest = verdict_grid.rows_by_load(grid_rows(document), [Load("closed", n) for n in (1, 2, 4, 8, 16)])
    assert first[verdict_grid.CONCURRENCY] == "**Quality**"
    assert [row[verdict_grid.CONCURRENCY] for row in rest] == [
        "1 stream",
        "2 streams",
        "4 streams",
        "8 streams",
        "16 streams",
    ]
    assert r"\*\*w\*\* \$x\$" in first
    assert "arrow_upward" in rest[0][r"\*\*w\*\* \$x\$"]
