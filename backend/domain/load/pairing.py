"""Which request of one run asks the same as which of another: by what was asked, never by the order of issue. Pure.

Where a turn follows an answer, the order in which requests are issued hangs on which answer ends first, so it differs from run
to run. What is asked does not: the prompt's line, the turn, and how often that line had come round before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from backend.domain.load.records import RequestRecord


class Asked(NamedTuple):
    """What a request asked, the same in every run of one plan."""

    line: int
    turn: int | None
    from_warm_up: bool
    """It, or the conversation that it is a turn of, began in warm-up, which takes prompts of its own from the first line on."""
    time: int
    """0 where the line was taken for the first time."""


def by_asked(records: Sequence[RequestRecord]) -> dict[Asked, RequestRecord]:
    """All requests of one run, warm-up and failed ones too: without them nobody could count how often a line came round."""
    warm = {_begun(record) for record in records if record.warm}
    begun: dict[tuple[int, bool], set[tuple[bool, int]]] = {}
    for record in records:
        begun.setdefault((record.prompt, _begun(record) in warm), set()).add(_begun(record))
    # Within a line and kind, prompts are taken in the order of issue, whatever the timing.
    times = {key: {place: time for time, place in enumerate(sorted(places))} for key, places in begun.items()}
    found = {}
    for record in records:
        key = (record.prompt, _begun(record) in warm)
        found[Asked(record.prompt, record.turn, key[1], times[key][_begun(record)])] = record
    return found


def pairs(baseline: Sequence[RequestRecord], variant: Sequence[RequestRecord]) -> Iterator[tuple[RequestRecord, RequestRecord]]:
    """Measured requests of two runs of one block that asked the same and were both answered, in the variant's order of issue."""
    ours, theirs = by_asked(baseline), by_asked(variant)
    for asked, own in sorted(theirs.items(), key=lambda item: item[1].index):
        other = ours.get(asked)
        if other is not None and all(record.ok and not record.warm for record in (own, other)):
            yield other, own


def _begun(record: RequestRecord) -> tuple[bool, int]:
    """What the request belongs to: its conversation, or itself."""
    return (False, record.index) if record.session is None else (True, record.session)
