"""A/A: a server evaluated against itself, over and over. How often is a difference named that cannot be there?

    .venv/bin/python -m benchmarks.aa [--exact 16] [--vllm 4] [--until-decided [--max-blocks 20]] [--note "..."]

Each run is an evaluation as a user starts one: a job, a worker, the load generator's own processes, requests that
alternate at one stream, blocks in ABBA order at more, paired intervals, Holm's correction over the levels. A difference
counts as named where the primary metric, output tokens/s, is called faster or slower; latencies are listed too. Both
variants are the address of one server: tests/fakes/exact_server.py with pauses that vary (each by itself, and all
together over seconds, which is what could break the test's assumption that blocks are independent), or vLLM with the
starter model. Writes benchmarks/results/aa.md; about 25 seconds a run on 2 cores. `--until-decided` ends each run by
the rule of decision 0021 in place of five blocks, and writes benchmarks/results/aa-rule.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from backend import service
from backend.cli.output import table
from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.comparison import HEADLINE
from backend.domain.evaluation.document import Comparison, EvaluateOptions, Evaluation
from backend.domain.figures import counted
from backend.domain.jobs.jobs import JobState
from backend.domain.maths.intervals import holm
from backend.domain.maths.serial_mean import SerialMean
from backend.domain.maths.student_t import SIGNIFICANCE
from backend.present.words.verdicts import describe_comparison
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs, supervisors
from backend.settings import Settings
from benchmarks import starter_server
from tests.fakes.running import running

RESULT, RULE_RESULT = (Path(__file__).parent / "results" / name for name in ("aa.md", "aa-rule.md"))
EXACT, VLLM = 16, 4
NOISY = ("--rate", 400, "--ttft-ms", 10, "--jitter", 0.25, "--wander", 0.1)
"""Pauses that spread by 25 % each, under a speed that wanders by 10 %."""
LEVELS, BLOCKS, REQUESTS, TOKENS = (1, 4), 5, 12, 12
EXCHANGES = 512
"""Ways to exchange the names that are tried, of many blocks."""


class Run(NamedTuple):
    """One evaluation of a server against itself."""

    server: str
    document: Evaluation

    @property
    def tested(self) -> list[Comparison]:
        """Those of which a difference could have been said."""
        return [row for row in self.document.comparison if row.p_value is not None]

    @property
    def named(self) -> list[Comparison]:
        return [row for row in self.document.comparison if row.significant and not row.secondary]


def runs(exact: int, vllm: int, most: int | None = None) -> Iterator[Run]:
    """So many evaluations of each server, one after another, in a home of their own that is gone afterwards. `most`:
    the cap of the rule that ends them; None for five blocks."""
    with tempfile.TemporaryDirectory(prefix="whetstone-aa-") as folder, _workspace(Path(folder) / "home") as workspace:
        if exact:
            with running("exact_server.py", *NOISY) as url:
                yield from (Run("exact", evaluated(workspace, [url, url], load_options(most))) for _ in range(exact))
        if vllm:
            with starter_server.serving(Path(folder)) as server:
                yield from (
                    Run("vLLM", evaluated(workspace, [server.url, server.url], load_options(most))) for _ in range(vllm)
                )


def load_options(most: int | None = None) -> EvaluateOptions:
    """Return the load of a run; `most`: the cap of the rule that ends it."""
    return evaluations.read_options(
        concurrency=LEVELS,
        repeats=BLOCKS,
        requests=REQUESTS,
        max_tokens=TOKENS,
        warmup_requests=1,
        quality=False,
        until_decided=most is not None,
        max_blocks=most,
    )


def evaluated(workspace: Workspace, sources: list[str], options: EvaluateOptions) -> Evaluation:
    """Evaluate sources as a job. Raises SystemExit where it failed."""
    job = evaluations.submit(workspace, evaluations.prepare(workspace, sources, options))
    supervisors.ensure_running(workspace)
    ended = jobs.wait(workspace, job.id)
    if ended.state is not JobState.SUCCEEDED:
        raise SystemExit(f"{ended.title}: {ended.error}\n{jobs.logs(workspace, job.id, tail_bytes=4000)}")
    return evaluations.show(workspace, str(ended.result["evaluation"])).document


@contextmanager
def _workspace(home: Path) -> Iterator[Workspace]:
    workspace = service.open_workspace(Settings(home=home))
    try:
        yield workspace
    finally:
        jobs.cancel_all_and_stop(workspace)


def log_ratios(run: Run, rows: Sequence[Comparison]) -> list[npt.NDArray[np.float64]]:
    """Return the log ratios of each row, slice by slice."""
    ratios = []
    for row in rows:
        pair = [
            next(level for level in result.levels if level.load == row.load).blocks for result in run.document.variants
        ]
        ratios.append(np.array([math.log(b[row.metric] / a[row.metric]) for a, b in zip(*pair, strict=True)]))
    return ratios


def uncorrected(run: Run) -> list[float]:
    """Return the p-value of each tested row by itself: what Holm's correction starts from."""
    return [_p_value(logs) for logs in log_ratios(run, run.tested)]


def _p_value(logs: npt.NDArray[np.float64]) -> float:
    p_value = SerialMean(tuple(logs.tolist())).p_value
    return 1.0 if p_value is None else p_value


def by_chance(run: Run) -> float:
    """Of all ways to exchange the two names in some of the blocks, the share that would name a difference.

    Each is as likely as the one that happened, were blocks independent: so this is the rate to expect with these very
    figures, and an observed rate well above it would say that neighbouring blocks are alike.
    """
    ratios = log_ratios(run, [row for row in run.tested if not row.secondary])
    blocks = run.document.options.repeats
    return fmean(
        any(_names(_exchanged(ratios, signs, test.blocks), test.alpha) for test in run.document.looks)
        for signs in _exchanges(blocks)
    )


def _exchanged(
    ratios: Sequence[npt.NDArray[np.float64]], signs: npt.NDArray[np.int64], blocks: int
) -> list[npt.NDArray[np.float64]]:
    """Return the ratios of the first `blocks` with the names exchanged in the blocks whose sign is -1."""
    exchanged = []
    for logs in ratios:
        slices = len(logs) // len(signs)
        exchanged.append((logs * np.repeat(signs, slices))[: blocks * slices])
    return exchanged


def _exchanges(number: int) -> Iterator[npt.NDArray[np.int64]]:
    """Signs of the blocks: every way up to the first one's, or of many blocks some drawn at random."""
    if 2 ** (number - 1) <= EXCHANGES:
        yield from (np.array((1, *rest)) for rest in itertools.product((1, -1), repeat=number - 1))
    else:
        yield from np.random.default_rng(0).choice(np.array((1, -1)), size=(EXCHANGES, number))


def _names(ratios: Sequence[npt.NDArray[np.float64]], alpha: float) -> bool:
    p_values = [_p_value(logs) for logs in ratios]
    return any(test.p_adjusted <= alpha for test in holm(p_values, alpha))


def neighbours(done: Sequence[Run]) -> tuple[float, float, float]:
    """Correlation of the log ratios of one slice and the next, whose true mean is 0, over all levels and metrics; its
    95 % interval over runs drawn anew (percentiles of 2,000)."""
    values = np.array([_lagged(log_ratios(run, run.tested)) for run in done if run.tested])
    drawn = np.random.default_rng(0).integers(0, len(values), (2000, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def _lagged(ratios: Sequence[npt.NDArray[np.float64]]) -> float:
    scaled = [logs / np.sqrt(np.square(logs).mean()) for logs in ratios]
    return fmean(float((logs[1:] * logs[:-1]).mean()) for logs in scaled)


def markdown(done: Sequence[Run], note: str, load: tuple[float, float, float]) -> str:
    document = done[0].document
    named = sum(bool(run.named) for run in done)
    low, high = exact_interval(named, len(done))
    alike, least, most = neighbours(done)
    machine, busy = document.hardware, ", ".join(f"{average:.1f}" for average in load)
    versions = ", ".join(f"{name} {version}" for name, version in document.versions.items())
    return "\n".join(
        [
            "# A/A: a server against itself",
            "",
            f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {machine['memory_bytes'] / 2**30:.0f} GiB; "
            f"{versions}; "
            f"{datetime.now(UTC):%Y-%m-%d}; load average at the end {busy}. {note}".rstrip(),
            "",
            f"Each run: an evaluation of one address under two names, {' and '.join(map(str, LEVELS))} streams, "
            f"{describe_blocks(done)} ABBA "
            f"blocks, {REQUESTS} requests of {TOKENS} tokens a level and block. `python -m benchmarks.aa`.",
            "",
            f"**Runs that named a difference: {named} of {len(done)}** ({named / len(done):.0%}, 95 % {low:.0%} to "
            f"{high:.0%}; "
            "at most 10 % allowed, 5 % intended).",
            "",
            "With the two names exchanged in every possible way among each run's blocks, as good as the way it "
            "happened if blocks "
            f"are independent: {fmean(by_chance(run) for run in done if run.tested):.1%}.",
            "",
            f"Log ratios of one slice and the next correlate by {alike:.2f} (95 % {least:.2f} to {most:.2f}).",
            "",
            "Each comparison by itself, before Holm's correction: where the intervals' assumptions hold, 5 % are "
            "below 0.05.",
            "",
            "```",
            table(*_by_metric(done)),
            "",
            table(*_by_run(done)),
            "```",
            "",
        ]
    )


def describe_blocks(done: Sequence[Run]) -> str:
    """How many blocks a run has, and what they came to where a rule says it."""
    options = done[0].document.options
    if not options.until_decided:
        return str(options.repeats)
    counts = [run.document.options.repeats for run in done]
    ended = sum(run.document.looks[-1].undecided == 0 for run in done)
    return (
        f"{stopping_rule.blocks_of_tests(options.max_blocks)[0]} to {options.max_blocks} (by the rule of decision "
        f"0021: {fmean(counts):.1f} in the "
        f"mean, {ended} of {len(done)} ended decided)"
    )


def exact_interval(named: int, number: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Clopper and Pearson 1934)."""
    proportion_ci = stats.binomtest(named, number).proportion_ci(method="exact")
    return proportion_ci.low, proportion_ci.high


def _tested(done: Sequence[Run]) -> Iterator[tuple[Run, Comparison, float]]:
    for run in done:
        if run.tested:
            yield from ((run, row, float(p)) for row, p in zip(run.tested, uncorrected(run), strict=True))


def _by_metric(done: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    rows: list[tuple[object, ...]] = []
    for server in dict.fromkeys(run.server for run in done):
        for headline in HEADLINE:
            pairs = [pair for pair in _tested(done) if pair[0].server == server and pair[1].metric.startswith(headline)]
            if not pairs:
                continue
            below = sum(p < SIGNIFICANCE for _, _, p in pairs)
            off = median(abs((row.ratio or 1) - 1) for _, row, _ in pairs)
            half = median((row.ci95[1] / row.ci95[0]) ** 0.5 - 1 for _, row, _ in pairs if row.ci95)
            named = sum(row.significant for _, row, _ in pairs)
            rows.append(
                (
                    server,
                    headline,
                    len(pairs),
                    f"{below} ({below / len(pairs):.0%})",
                    named,
                    f"{off:.1%}",
                    f"{half:.1%}",
                )
            )
    header = (
        "server",
        "metric",
        "tested",
        "p < 0.05 by itself",
        "named",
        "median off 1.00",
        "half-width of the interval",
    )
    return header, rows


def _by_run(done: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    rows = [
        (
            number,
            run.server,
            f"{len(run.tested)} of {len(run.document.comparison)}",
            min((row.p_value for row in run.tested if row.p_value is not None), default=None),
            "; ".join(f"{row.load.cell} {row.metric}: {describe_comparison(row)}" for row in run.named) or "none",
        )
        for number, run in enumerate(done, 1)
    ]
    return ("run", "server", "tested", "least p, corrected", "differences named"), rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", type=int, default=EXACT, help="runs of the exact server")
    parser.add_argument("--vllm", type=int, default=VLLM, help="runs of vLLM")
    parser.add_argument("--until-decided", action="store_true", help="end each run by the rule")
    parser.add_argument("--max-blocks", type=int, default=20, help="with --until-decided: its cap")
    parser.add_argument("--note", default="", help="a sentence for the result: what else the machine did")
    arguments = parser.parse_args()
    done = []
    most = arguments.max_blocks if arguments.until_decided else None
    for run in runs(arguments.exact, arguments.vllm, most):
        done.append(run)
        print(
            f"{len(done)} {run.server}: {'; '.join(describe_comparison(row) for row in run.named) or 'no difference'}",
            flush=True,
        )
    text = markdown(done, arguments.note, os.getloadavg())
    (RESULT if most is None else RULE_RESULT).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
