"""Number of blocks of an evaluation, why it has so many, and the level of its tests, in words."""

from __future__ import annotations

from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.figures import counted, level, listed

PRIMARY_RULE = (
    "; output tokens/s decides, corrected over variants and levels; latencies are secondary, each is tested by itself"
)
"""Which figures the tests decide by; evaluations of before corrected all of them."""


def planned_repeats(options: EvaluateOptions) -> str:
    """`5 repeats`; `6 to 20 repeats, until conclusive`."""
    if not options.until_decided:
        return counted(options.repeats, "repeat")
    first = stopping_rule.blocks_of_tests(options.max_blocks)[0]
    return f"{first} to {counted(options.max_blocks, 'repeat')}, until conclusive"


def measured_repeats(document: Evaluation) -> str:
    """`5`; `11: 5 and, later, 6 more`."""
    total, (first, *more) = document.options.repeats, document.sessions or (document.options.repeats,)
    later = [f"{blocks} more" for blocks in more]
    return f"{total}: {first} and, later, {listed(later)}" if more else str(total)


def describe_tests(document: Evaluation) -> str:
    """Return `once, at 5%`; for a stopping rule its tests and the level that each spent; for a continued evaluation
    the level that pays for the earlier tests."""
    # No test at all.
    if not document.looks:
        return "none"
    return f"{_tests_in_time(document)}{PRIMARY_RULE if any(row.secondary for row in document.comparison) else ''}"


def _tests_in_time(document: Evaluation) -> str:
    last = document.looks[-1]
    # A stopping rule with its tests.
    if last.most is not None:
        tests = [test for test in document.looks if test.most is not None]
        places = listed([str(test.blocks) for test in tests])
        spent = sum(test.alpha for test in tests)
        end = "all are conclusive" if not last.undecided else f"{last.undecided} inconclusive"
        return (
            f"after {places} of at most {last.most} blocks, as planned; {end}. The last test used {level(last.alpha)}, "
            f"all tests {level(spent)} of 5%, so that 95% intervals stay valid whenever it stops"
        )
    # A fixed number of blocks, continued or not.
    if last.continuation:
        earlier = counted(last.continuation, "test")
        return f"at {level(last.alpha)}: lower than 5% because it was continued after {earlier}"
    return "once, at 5%"
