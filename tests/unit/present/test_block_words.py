"""How many blocks an evaluation has and at what level its verdicts stand, in words; and on the pages that say it."""

from __future__ import annotations

import pytest

from app.compare.side_by_side import conditions
from backend.domain.evaluation.blocks.sequential_tests import SequentialTest
from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.present.words import repeat_counts
from tests.simulated import evaluation


def with_looks(repeats: int, sessions: tuple[int, ...], *styles: SequentialTest, **options: object) -> Evaluation:
    result = evaluation(names=("a", "b"), speeds=(1.0, 1.2))
    chosen = result.options.model_copy(update={"repeats": repeats, **options})
    return result.model_copy(update={"options": chosen, "sessions": sessions, "looks": styles})


@pytest.mark.parametrize(
    ("created", "measured", "tests"),
    [
        (with_looks(3, (3,)), "3", "none"),
        (with_looks(5, (5,), SequentialTest(blocks=5, alpha=0.05)), "5", "once, at 5%"),
        (
            with_looks(
                7, (5, 2), SequentialTest(blocks=5, alpha=0.05), SequentialTest(blocks=7, alpha=0.025, continuation=1)
            ),
            "7: 5 and, later, 2 more",
            "at 2.5%: lower than 5% because it was continued after 1 test",
        ),
        (
            with_looks(
                8,
                (8,),
                SequentialTest(blocks=6, alpha=0.000346, most=20, undecided=2),
                SequentialTest(blocks=8, alpha=0.0016, most=20, undecided=0),
            ),
            "8",
            "after 6 and 8 of at most 20 blocks, as planned; all are conclusive. The last test used 0.16%, all tests "
            "0.19% "
            "of 5%, so that 95% intervals stay valid whenever it stops",
        ),
        (
            with_looks(6, (6,), SequentialTest(blocks=6, alpha=0.05, most=6, undecided=3)),
            "6",
            "after 6 of at most 6 blocks, as planned; 3 inconclusive. The last test used 5%, all tests 5% of 5%, so "
            "that "
            "95% intervals stay valid whenever it stops",
        ),
    ],
    ids=["untested", "once", "continued", "rule", "cap"],
)
def test_blocks_and_tests_in_words(created: Evaluation, measured: str, tests: str) -> None:
    tests += repeat_counts.PRIMARY_RULE if created.looks else ""
    assert (repeat_counts.measured_repeats(created), repeat_counts.describe_tests(created)) == (measured, tests)
    neighbour = conditions(created)
    assert (neighbour["Repeats"], neighbour["Tests"]) == (measured, tests)


def test_what_is_planned() -> None:
    assert repeat_counts.planned_repeats(EvaluateOptions(repeats=1)) == "1 repeat"
    assert repeat_counts.planned_repeats(EvaluateOptions(until_decided=True)) == "6 to 20 repeats, until conclusive"
