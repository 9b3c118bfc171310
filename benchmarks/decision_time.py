"""Seconds of measuring until 1.2x, 1.4x and 2x are decided, before and after decision 0052, simulated.

    .venv/bin/python -m benchmarks.decision_time [--runs 2000] [--write]

Requests are simulated one after another in time, on a machine whose speed wanders (Ornstein and Uhlenbeck's process: at
equal steps an AR(1) series), drifts over the session, and adds noise to each request. Before: each variant has the
machine for a whole run, each run is one figure of a paired t-test, four metrics, all levels and variants are one
family, and O'Brien and Fleming's boundaries are spent. After: requests alternate at one stream, slices are paired, the
interval allows for neighbours that are alike, output tokens/s is tested alone, and 0.05 s^2 is spent. The looks and the
levels of today's rule are the product's own; the tests are those of tests/rule_runs.py. --write records the result in
benchmarks/results/decision_time.md. Two minutes of one core; nothing is timed, so other work does not matter.
"""

from __future__ import annotations

import argparse
import math
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
from scipy import stats

from backend.cli.output import table
from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.maths.student_t import SIGNIFICANCE
from benchmarks.aa import exact_interval
from tests.rule_runs import holm_rejections, serial_means

RESULT = Path(__file__).parent / "results" / "decision_time.md"
Series = npt.NDArray[np.float64]
BLOCKS = 20
"""The cap of the rule."""
REQUEST_SECONDS = 0.9
"""A request of 32 tokens at 36 tokens/s: the original on vLLM at one stream, on this processor."""
BATCH = 1.4
"""Times that as long at four streams."""
FIRST_TOKEN_NOISE = 3.0
"""Noise of a time to first token, as a multiple of a throughput's. Assumed."""
EFFECTS = (1.1, 1.2, 1.3, 1.4, 2.0)


class Machine(NamedTuple):
    """What the machine does: spreads of logarithms, seconds until half to two thirds of a wander is forgotten."""

    name: str
    request: float
    """Spread of each request by itself."""
    wander: float
    seconds: float
    drift: float = 0.2
    """Change over the longest session."""


QUIET = Machine("quiet", 0.08, 0.06, 20.0)
"""A block of before then spreads by 6 %: the least of the spreads of benchmarks/results/real_model.json."""
NOISY = Machine("half a core taken", 0.15, 0.25, 10.0)
"""A block of before then spreads by 25 %: an evaluation beside other programs had 0.84 to 2.17 after 8 blocks."""
AA_MACHINES = (
    QUIET,
    NOISY,
    NOISY._replace(name="wander of 2 s", seconds=2.0),
    NOISY._replace(name="wander of 60 s", seconds=60.0),
    NOISY._replace(name="wander of 300 s", seconds=300.0),
    NOISY._replace(name="drift of 2x", drift=math.log(2)),
)


class Shape(NamedTuple):
    """Which comparison: variants beside the original, and the levels."""

    name: str
    variants: int
    levels: tuple[int, ...]


PAIR = Shape("one variant, 1 stream", 1, (1,))
DEMO = Shape("two variants, 1 and 4 streams", 2, (1, 4))


class Decided(NamedTuple):
    """Of all simulated evaluations: seconds of measuring until the first test that named the first variant at one
    stream (infinite where none did), and whether any test named anything."""

    seconds: Series
    named: npt.NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = markdown(arguments.runs)
    if arguments.write:
        RESULT.write_text(text)
    print(text)


def simulate(shape: Shape, machine: Machine, effect: float, runs: int, *, after: bool, seed: int = 0) -> Decided:
    """Simulate evaluations in which every variant is `effect` times as fast as the original."""
    rng = np.random.default_rng(seed)
    # 1. The moments of all runs and slices, and how slow the machine is there.
    plan = _after(shape, effect) if after else _before(shape, effect)
    slowness = _slowness(rng, plan, machine, runs)
    # 2. Log ratios by test: [runs, tests, slices], each test with as many slices a block as its level has.
    ratios = _log_ratios(rng, plan, slowness, machine, shape, effect, after=after)
    # 3. The numbers of blocks after which the rule tests.
    blocks_of_tests = stopping_rule.blocks_of_tests(BLOCKS) if after else _looks_of_before()
    levels = stopping_rule.significance_levels(BLOCKS) if after else _levels_of_before()
    seconds, named = np.full(runs, np.inf), np.zeros(runs, bool)
    ends = plan.ends
    for blocks, alpha in zip(blocks_of_tests, levels, strict=True):
        p_values = np.concatenate([_p_values(test, blocks, after=after) for test in ratios], axis=1)
        rejected, _ = holm_rejections(p_values, alpha)
        seconds = np.where(rejected[:, 0] & np.isinf(seconds), ends[blocks - 1], seconds)
        named |= rejected.any(axis=1)
    return Decided(seconds, named)


class Plan(NamedTuple):
    """Requests, or runs of four streams, in the order of measuring: when each begins, how long it takes, and which it
    is."""

    begins: Series
    lasts: Series
    variant: npt.NDArray[np.int64]
    level: npt.NDArray[np.int64]
    block: npt.NDArray[np.int64]
    requests: npt.NDArray[np.int64]
    """Requests of each entry, whose mean its figure is."""

    @property
    def ends(self) -> list[float]:
        """Seconds at the end of each block."""
        stops = self.begins + self.lasts
        return [float(stops[self.block == block].max()) for block in range(BLOCKS)]


def _before(shape: Shape, effect: float) -> Plan:
    """Plan whole runs: four requests a stream, at least eight, behind two for warm-up; the order turns each block."""
    rows: list[tuple[int, int, int, int, float, float]] = []
    for block in range(BLOCKS):
        order = range(shape.variants + 1) if block % 2 == 0 else reversed(range(shape.variants + 1))
        for variant in order:
            for level in shape.levels:
                count = max(8, 4 * level)
                each = _request_seconds(level, variant, effect)
                rows.append((variant, level, block, count, each * count / level, each * max(1.0, 2 / level)))
    return _timed(rows)


def _after(shape: Shape, effect: float) -> Plan:
    """Plan requests that alternate at one stream, runs of three requests a stream at more, behind one for warm-up."""
    rows: list[tuple[int, int, int, int, float, float]] = []
    for block in range(BLOCKS):
        for level in shape.levels:
            slices = 6 if level == 1 else 1
            for turn in range(slices):
                number = block * slices + turn
                order = [(number + place) % (shape.variants + 1) for place in range(shape.variants + 1)]
                for variant in order if number % 2 == 0 else order[::-1]:
                    each = _request_seconds(level, variant, effect)
                    count = 1 if level == 1 else max(6, 3 * level)
                    warm_up = each if level > 1 or turn == 0 else 0.0
                    rows.append((variant, level, block, count, each * count / level, warm_up))
    return _timed(rows)


def _request_seconds(level: int, variant: int, effect: float) -> float:
    return REQUEST_SECONDS * (BATCH if level > 1 else 1.0) / (effect if variant else 1.0)


def _timed(rows: list[tuple[int, int, int, int, float, float]]) -> Plan:
    """Return the plan of (variant, level, block, requests, seconds, seconds of warm-up before) one after another."""
    variant, level, block, requests, lasts, warm_up = (np.array(column) for column in zip(*rows, strict=True))
    begins = np.cumsum(lasts + warm_up) - lasts
    return Plan(begins, lasts, variant, level, block, requests)


def _slowness(rng: np.random.Generator, plan: Plan, machine: Machine, runs: int) -> Series:
    """Return the mean log slowness of the machine during each entry: [runs, entries]."""
    # 1. The wander at a fixed step, exactly, averaged over each entry by its running sum.
    step = min(machine.seconds / 10, REQUEST_SECONDS / 2)
    end = float((plan.begins + plan.lasts)[-1])
    points = math.ceil(end / step) + 2
    memory = math.exp(-step / machine.seconds)
    state, total = rng.normal(size=runs), np.zeros((runs, points + 1))
    for place in range(points):
        total[:, place + 1] = total[:, place] + state
        state = memory * state + math.sqrt(1 - memory**2) * rng.normal(size=runs)
    first = (plan.begins / step).astype(int)
    last = np.maximum(((plan.begins + plan.lasts) / step).astype(int), first + 1)
    wander = machine.wander * (total[:, last] - total[:, first]) / (last - first)
    # 2. The drift over the session.
    return wander + machine.drift * (plan.begins + plan.lasts / 2) / end


def _log_ratios(
    rng: np.random.Generator,
    plan: Plan,
    slowness: Series,
    machine: Machine,
    shape: Shape,
    effect: float,
    *,
    after: bool,
) -> list[Series]:
    """Return the log ratios of each level: [runs, tests, slices], the first test that of the first variant."""
    noise = machine.request / np.sqrt(plan.requests)
    speed = np.where(plan.variant > 0, math.log(effect), 0.0) - slowness + noise * rng.normal(size=slowness.shape)
    metrics = [speed]
    if not after:  # two latencies that go with the throughput, and the first token's
        metrics += [speed + 0.2 * noise * rng.normal(size=speed.shape) for _ in range(2)]
        metrics.append(speed + FIRST_TOKEN_NOISE * noise * rng.normal(size=speed.shape))
    ratios = []
    for level in shape.levels:
        tests = []
        for figures in metrics:
            original = figures[:, (plan.variant == 0) & (plan.level == level)]
            for variant in range(1, shape.variants + 1):
                tests.append(figures[:, (plan.variant == variant) & (plan.level == level)] - original)
        ratios.append(np.stack(tests, axis=1))
    return ratios


def _p_values(ratios: Series, blocks: int, *, after: bool) -> Series:
    """Return the two-sided p-values after so many blocks: [runs, tests]."""
    observed = ratios[:, :, : blocks * (ratios.shape[2] // BLOCKS)]
    if after:
        mean, error, freedom = serial_means(observed)
        return np.asarray(2 * stats.t.sf(np.abs(mean / error), freedom))
    return np.asarray(stats.ttest_1samp(observed, 0.0, axis=2).pvalue)


def _looks_of_before() -> tuple[int, ...]:
    """Return the looks of before decision 0052: the same ones, where 0.00001 and more was spent."""
    return tuple(n for n in (6, 8, 12, 16, BLOCKS) if _spent_before(n / BLOCKS) >= stopping_rule.LEAST_SPENDING)


def _levels_of_before() -> tuple[float, ...]:
    spent = [0.0, *(_spent_before(blocks / BLOCKS) for blocks in _looks_of_before())]
    return tuple(later - earlier for earlier, later in pairwise(spent))


def _spent_before(share: float) -> float:
    """Return what was spent after a share of the blocks, as O'Brien and Fleming's boundaries do: 2 (1 - Phi(z /
    sqrt(share)))."""
    normal = NormalDist()
    return 2 * (1 - normal.cdf(normal.inv_cdf(1 - SIGNIFICANCE / 2) / math.sqrt(share)))


def markdown(runs: int) -> str:
    """Return the record: seconds to decide by effect and machine, then the differences named where there are none."""
    header = (
        "comparison",
        "machine",
        "true ratio",
        "before: median, 90 %",
        "decided",
        "after: median, 90 %",
        "decided",
    )
    curve = [
        (shape.name, machine.name, f"{effect:g}x", *_curve_cells(shape, machine, effect, runs))
        for shape in (PAIR, DEMO)
        for machine in (QUIET, NOISY)
        for effect in EFFECTS
    ]
    false = [
        (shape.name, machine.name, *(_named_cell(shape, machine, runs, after=after) for after in (False, True)))
        for shape in (PAIR, DEMO)
        for machine in AA_MACHINES
    ]
    versions = f"numpy {np.__version__}, scipy {scipy.__version__}"
    return "\n".join(
        [
            "# Seconds to decide, simulated",
            "",
            f"`python -m benchmarks.decision_time --runs {runs} --write`; {versions}; {datetime.now(UTC):%Y-%m-%d}. "
            "Nothing here was timed: seconds are those of the simulated requests, "
            f"{REQUEST_SECONDS:g} s each for the original at one stream, all variants and levels together, warm-ups "
            "counted and starts of servers not.",
            "",
            f"{runs} evaluations a cell, each until the first variant is named at 1 stream or {BLOCKS} blocks are "
            "over. "
            + " ".join(
                f"{machine.name.capitalize()}: each request spreads by {machine.request:.0%}, the machine wanders by "
                f"{machine.wander:.0%} over {machine.seconds:g} s and drifts by {machine.drift:.0%}."
                for machine in (QUIET, NOISY)
            ),
            "",
            "```",
            table(header, curve),
            "```",
            "",
            "## No difference: evaluations that named one at any look",
            "",
            "The machine is the noisy one, but for what its name says.",
            "",
            "```",
            table(("comparison", "machine", "before", "after"), false),
            "```",
            "",
        ]
    )


def _curve_cells(shape: Shape, machine: Machine, effect: float, runs: int) -> tuple[str, str, str, str]:
    cells: list[str] = []
    for after in (False, True):
        seconds = simulate(shape, machine, effect, runs, after=after).seconds
        middle, late = np.quantile(seconds, [0.5, 0.9], method="higher")
        cells += [f"{_seconds(middle)}, {_seconds(late)}", f"{np.isfinite(seconds).mean():.0%}"]
    return cells[0], cells[1], cells[2], cells[3]


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if math.isfinite(value) else "never"


def _named_cell(shape: Shape, machine: Machine, runs: int, *, after: bool) -> str:
    named = int(simulate(shape, machine, 1.0, runs, after=after, seed=1).named.sum())
    low, high = exact_interval(named, runs)
    return f"{named} of {runs}: {named / runs:.1%} ({low:.1%} to {high:.1%})"


if __name__ == "__main__":
    main()
