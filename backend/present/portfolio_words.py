"""A portfolio in words: which variant to serve at which number of streams, and what that gains."""

from __future__ import annotations

from backend.domain.figures import code, counted, listed
from backend.domain.what_if.portfolio import Portfolio, StreamRange

TITLE = "Best variant by load"
TOO_FEW = "Measure at two or more numbers of streams to see which variant is best at which load."
BASIS = "Read from the measured levels of this evaluation; a switch must gain more than 3%. Nothing is interpolated."


def range_text(part: StreamRange) -> str:
    """Return `4 streams` or `1 to 4 streams`."""
    return counted(part.first, "stream") if part.first == part.last else f"{part.first} to {part.last} streams"


def sentence(portfolio: Portfolio) -> str:
    """Say what to serve, and what it gains over the best single variant."""
    # 1. One variant.
    ranges = portfolio.ranges
    if len(ranges) == 1:
        return f"{code(ranges[0].variant)} is the best choice at every load that was measured: serve it alone."
    # 2. Several, and their gain.
    parts = [f"{code(part.variant)} at {range_text(part)}" for part in ranges]
    text = f"Serve {listed(parts)}."
    if portfolio.gain is None or portfolio.best_single is None or portfolio.least is None:
        return f"{text} No single variant is within your limits at every measured load."
    return (
        f"{text} Over the measured loads that is {portfolio.gain:.2f}x the output tokens/s of the best single variant, "
        f"{code(portfolio.best_single)}, and never below {portfolio.least:.2f}x."
    )


def switch_sentences(portfolio: Portfolio) -> list[str]:
    """Say where to switch in both directions."""
    return [
        f"Switch to {code(switch.above)} at {switch.up} requests in flight, and back to {code(switch.below)} at "
        f"{switch.down}."
        for switch in portfolio.switches
    ]


def note_sentences(portfolio: Portfolio) -> list[str]:
    """Say which loads no variant serves within the limits, and which variants were left out."""
    notes = []
    if portfolio.unserved:
        levels = listed([str(streams) for streams in portfolio.unserved])
        notes.append(f"No variant is within your limits at {levels} streams.")
    notes += [f"{code(name)} is left out: {reason}." for name, reason in portfolio.left_out.items()]
    return notes
