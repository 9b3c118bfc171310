"""A/A evaluations on a machine that delays the load generator now and then, simulated: before and after decision 0070.

    .venv/bin/python -m benchmarks.late_blocks [--runs 10000] [--write]

Six blocks of six slices at one stream, of two servers that are alike. In each block the generator is late with the
given chance; half of the slices of such a block then have a further error of the given size in the log ratio, to either
side.
What is left out is the product's own rule (`late_blocks.find_late_blocks`), and so is the test of what remains. --write
records the result in benchmarks/results/late_blocks.md. Seconds of one core; nothing is timed.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from backend.cli.output import table
from backend.domain.evaluation.blocks.late_blocks import find_late_blocks
from backend.domain.maths.serial_mean import SerialMean
from backend.domain.maths.student_t import SIGNIFICANCE
from benchmarks.aa import exact_interval
from tests.simulated import audit

RESULT = Path(__file__).parent / "results" / "late_blocks.md"
BLOCKS, SLICES = 6, 6
SPREAD = 0.1
"""Of a slice's log ratio."""
CHANCES = (0.03, 0.1, 0.2)
ERRORS = (0.0, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = [simulate(chance, error, arguments.runs) for chance in CHANCES for error in ERRORS]
    text = table(["late", "error then", "no verdict, before", "no verdict, now", "names a difference, now"], rows)
    print(text)
    if arguments.write:
        when = datetime.now(UTC).date()
        head = f"`python -m benchmarks.late_blocks --runs {arguments.runs} --write`; {when}. Nothing here was timed."
        RESULT.write_text(f"# Blocks in which the load generator is late, simulated\n\n{head}\n\n```\n{text}\n```\n")


def simulate(chance: float, error: float, runs: int) -> list[str]:
    """Return one row of the table."""
    rng = random.Random(f"{chance}/{error}")
    void_before = void_now = differing = 0
    for _ in range(runs):
        late = [rng.random() < chance for _ in range(BLOCKS)]
        logs = [_slices(rng, error if each else 0.0) for each in late]
        left_out = find_late_blocks([[audit(late=each) for each in late]])
        void_before += any(late)
        if any(late) and not left_out:
            void_now += 1
            continue
        used = [log for block, row in enumerate(logs) if block not in left_out for log in row]
        differing += (SerialMean(tuple(used)).p_value or 1.0) <= SIGNIFICANCE
    compared = runs - void_now
    low, high = exact_interval(differing, compared)
    return [
        f"{chance:.0%} of blocks",
        f"{error:g}",
        f"{void_before / runs:.1%}",
        f"{void_now / runs:.1%}",
        f"{differing / compared:.1%} ({low:.1%} to {high:.1%})",
    ]


def _slices(rng: random.Random, error: float) -> Sequence[float]:
    return [rng.gauss(0, SPREAD) + rng.choice((-error, 0.0, 0.0, error)) for _ in range(SLICES)]


if __name__ == "__main__":
    main()
