"""How many blocks an evaluation has, how it came to them, and at what level its verdicts stand, in words."""

from __future__ import annotations

from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.document import EvaluateOptions, Evaluation
from backend.domain.figures import counted, level, listed


def planned_repeats(options: EvaluateOptions) -> str:
    """`5 repeats`; `6 to 20 repeats, until it is decided`."""
    if not options.until_decided:
        return counted(options.repeats, "repeat")
    return f"{stopping_rule.blocks_of_tests(options.max_blocks)[0]} to {counted(options.max_blocks, 'repeat')}, until it is decided"


def measured_repeats(document: Evaluation) -> str:
    """`5`; `11: 5 and, later, 6 more`."""
    total, (first, *more) = document.options.repeats, document.sessions or (document.options.repeats,)
    later = [f"{blocks} more" for blocks in more]
    return f"{total}: {first} and, later, {listed(later)}" if more else str(total)


def describe_tests(document: Evaluation) -> str:
    """`once, at 5%`; of a rule its looks and what each spent; of what was continued, the level that pays for the
    look."""
    if not document.looks:
        return "none"
    last = document.looks[-1]
    if last.most is not None:
        looks = [look for look in document.looks if look.most is not None]
        places = listed([str(look.blocks) for look in looks])
        spent = sum(look.alpha for look in looks)
        end = "all is decided" if not last.undecided else f"{last.undecided} undecided"
        return (
            f"after {places} of at most {last.most} blocks, as fixed beforehand; {end}. This look at {level(last.alpha)}, "
            f"all so far {level(spent)} of 5%, so that intervals hold with 95% wherever it ended"
        )
    if last.continuation:
        went = counted(last.continuation, "test")
        return f"at {level(last.alpha)}: it was continued after {went} had been seen, which is paid for"
    return "once, at 5%"
