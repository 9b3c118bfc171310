"""Thousands of evaluations under the rule that ends them (`domain.evaluation.blocks.rule`), made up as log ratios of
blocks.

The rule's own places and levels; tests of the mean, Holm's procedure and the band of sameness written anew, in numpy
over all runs at once, so that what is shipped is held against something else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import fft, stats

from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.outcome import EQUIVALENCE


class Ended(NamedTuple):
    """Of all runs, each an array: blocks at the end, whether it named any difference then, at any look before too,
    whether it named each comparison that the rule waits for, and whether any of their last intervals left its true
    ratio out."""

    blocks: np.ndarray
    named: np.ndarray
    ever: np.ndarray
    decided: np.ndarray
    missed: np.ndarray


def simulate(
    runs: int,
    most: int,
    *,
    effect: float = 0.0,
    noise: float = 0.05,
    tests: int = 8,
    awaited: int = 2,
    alike: float = 0.5,
    slices: int = 1,
    memory: float = 0.0,
    seed: int = 0,
    schedule: tuple[tuple[int, float], ...] | None = None,
) -> Ended:
    """`effect`: the true log ratio of every test; `noise`: the spread of a slice's; `alike`: how much of that tests
    share; `slices` of a block; `memory`: the correlation of a slice with the one before.

    `awaited`: of the tests, those that the rule waits for. `schedule`: (blocks, level) in place of the rule's."""
    rng = np.random.default_rng(seed)
    shared, own = (_series(rng, (runs, each, most * slices), memory) for each in (1, tests))
    logs = effect + noise * (math.sqrt(alike) * shared + math.sqrt(1 - alike) * own)
    planned = schedule or tuple(
        zip(stopping_rule.blocks_of_tests(most), stopping_rule.significance_levels(most), strict=True)
    )
    blocks, running = np.full(runs, most), np.ones(runs, bool)
    named, ever, decided, missed = (np.zeros(runs, bool) for _ in range(4))
    for place, alpha in planned:
        observed = logs[:, :, : place * slices]
        mean, error, freedom = serial_means(observed)
        rejected, level = holm_rejections(2 * stats.t.sf(np.abs(mean / error), freedom), alpha)
        half = stats.t.ppf(1 - level / 2, freedom) * error
        band = math.log(1 + EQUIVALENCE)
        same = (mean + half <= band) & (mean - half >= -band)
        done = (rejected | same)[:, :awaited].all(axis=1)
        ever |= rejected.any(axis=1) & running
        last = running & (done | (place == most))
        blocks[last], named[last], decided[last] = (
            place,
            rejected.any(axis=1)[last],
            rejected[:, :awaited].all(axis=1)[last],
        )
        missed[last] = (np.abs(mean - effect) > half)[:, 0][last]
        running &= ~last
    return Ended(blocks, named, ever, decided, missed)


def _series(rng: np.random.Generator, shape: tuple[int, int, int], memory: float) -> np.ndarray:
    """Return an autoregressive series along the last axis, of spread 1."""
    noise = rng.normal(size=shape)
    for place in range(1, shape[2]) if memory else ():
        noise[:, :, place] = memory * noise[:, :, place - 1] + math.sqrt(1 - memory**2) * noise[:, :, place]
    return noise


def serial_means(array: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """[runs, tests, slices]: the mean, its standard error by the discrete cosine transform, its degrees of freedom."""
    count = array.shape[2]
    freedom = min(count - 1, max(8, math.ceil(0.4 * count ** (2 / 3))))
    coefficients = fft.dct(array, type=2, norm="ortho", axis=2)[:, :, 1 : freedom + 1]
    return array.mean(axis=2), np.sqrt((coefficients**2).mean(axis=2) / count), freedom


def holm_rejections(p: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """[runs, tests]: rejected, and the level that each interval stands at."""
    runs, tests = p.shape
    order = np.argsort(p, axis=1)
    steps = alpha / (tests - np.arange(tests))
    passed = np.logical_and.accumulate(np.take_along_axis(p, order, 1) <= steps, axis=1)
    first = steps[np.minimum(passed.sum(axis=1), tests - 1)]
    levels = np.where(passed, steps, first[:, None])
    rejected, level = np.empty((runs, tests), bool), np.empty((runs, tests))
    np.put_along_axis(rejected, order, passed, 1)
    np.put_along_axis(level, order, levels, 1)
    return rejected, level
