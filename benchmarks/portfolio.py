"""The gateway's model `auto`: is it as fast as the best variant at every load, and is a request lost at a switch?

    python -m benchmarks.portfolio switches [--requests 10000]
    WHETSTONE_HOME=HOME python -m benchmarks.portfolio real EVALUATION [--max-kl 0.03] [--slices 4] [--seconds 8]

`switches`: two servers whose every answer is known beforehand, behind one gateway whose portfolio switches between 4
and 8 streams. The load jumps between 1, 2, 4, 8, 16 and 32 streams. Each answer is compared word by word, and the
servers' own logs say who answered.

`real`: the portfolio of an evaluation of that home. Its variants are served, each by its engine, and
`whetstone gateway --portfolio` stands before them. At each number of streams the variants by their own names and `auto`
take turns, slice by slice, with the prompts of the evaluation's workload. Each writes its part of
benchmarks/results/portfolio.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from backend import service
from backend.cli.output import table
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan, RequestRecord
from backend.domain.what_if.portfolio import Portfolio, StreamRange, SwitchPoint
from backend.evaluate.load import run_alternating, run_level
from backend.hardware import probe
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.serving import gateway, serve
from benchmarks.load_peers import PROMPT
from tests.fakes.running import ask, running, write_prompts
from tests.helpers.running_gateway import running_gateway, upstream_at

RESULTS = Path(__file__).parent / "results"
STREAMS = (1, 2, 4, 8, 16, 32)
JUMPS = (1, 8, 4, 16, 2, 32)
"""Streams of the slices of `switches`, over and over: each is on another side of the switch than the one before."""
ANSWER_TOKENS, MAX_TOKENS = 6, 32
LEAST, GAIN = 0.97, 1.15
"""Goals: of the best variant at each load, and of the best fixed one in the geometric mean."""


class Switching(NamedTuple):
    """Requests that were sent, lost and altered, answers by each server, and changes of the server in a row."""

    requests: int
    lost: int
    altered: int
    answered: dict[str, int]
    switches: int


def measure_switches(requests: int, folder: Path) -> Switching:
    """Send that many requests at jumping streams, and compare each answer with what its server sent."""
    portfolio = Portfolio(
        ranges=(StreamRange(variant="low", first=1, last=4), StreamRange(variant="high", first=8, last=32)),
        switches=(SwitchPoint(below="low", above="high", down=4, up=8),),
        best_single=None,
        gain=None,
        least=None,
    )
    lengths = [ANSWER_TOKENS + number % 5 for number in range(32)]
    prompts = write_prompts(folder, *({"prompt": f"{length} tokens", "max_tokens": length} for length in lengths))
    records: list[RequestRecord] = []
    with ExitStack() as stack:
        # 1. Two servers of unlike speed behind the gateway.
        urls = {
            name: stack.enter_context(running("exact_server.py", "--rate", rate, "--ttft-ms", 5))
            for name, rate in (("low", 900), ("high", 700))
        }
        upstreams = [
            upstream_at(url, name=name, source=name, served_name="exact", job=f"j-{name}") for name, url in urls.items()
        ]
        running_ = stack.enter_context(running_gateway(upstreams, folder, portfolio=portfolio))
        # 2. The load, at another number of streams each time.
        number = 0
        while len(records) < requests:
            streams = JUMPS[number % len(JUMPS)]
            plan = LoadPlan(
                url=f"http://127.0.0.1:{running_.port}/v1",
                model=gateway.MODEL,
                endpoint="chat",
                load=Load("closed", streams),
                requests=min(40 * streams, requests - len(records)),
                warmup_requests=0,
                prompts=prompts,
            )
            records += run_level(plan, folder / f"level{number}")[0]
            number += 1
        sent = {name: len(ask(f"{url}/sent")) for name, url in urls.items()}
    # 3. The log says which server each request went to, in the order of their ends.
    served = [line["model"] for line in running_.log_lines() if line["status"]]
    return Switching(
        requests=len(records),
        lost=sum(not record.ok for record in records),
        altered=sum(record.ok and not _is_whole(record, lengths[record.prompt]) for record in records),
        answered=sent,
        switches=sum(one != other for one, other in pairwise(served)),
    )


def _is_whole(record: RequestRecord, tokens: int) -> bool:
    """Tell whether the answer is the one that such a request always gets: its number, then each word once."""
    words = "".join(f"w{number} " for number in range(tokens))
    return re.fullmatch(rf"r\d+ {words}", record.text) is not None and len(record.chunk_times) == tokens


class Row(NamedTuple):
    """Output tokens/s of one name at one number of streams, slice by slice, and its requests."""

    name: str
    streams: int
    by_slice: list[float]
    requests: int
    failed: int

    @property
    def mean(self) -> float:
        return fmean(self.by_slice)


def measure_real(workspace: Workspace, options: argparse.Namespace, folder: Path) -> tuple[list[Row], list[str]]:
    """Return the rows of the portfolio's variants and of `auto`, and what the gateway announced of the portfolio."""
    # 1. The portfolio, and the prompts of its evaluation.
    document = evaluations.show(workspace, options.evaluation).document
    limits = Slo(ttft_ms=options.ttft_p95, tpot_ms=options.tpot_p95)
    portfolio, sources = gateway.read_portfolio(workspace, options.evaluation, limits, options.max_kl)
    names = list(dict.fromkeys(part.variant for part in portfolio.ranges))
    if portfolio.best_single is not None and portfolio.best_single not in names:
        names.append(portfolio.best_single)
    workload = next((workspace.settings.home / "workloads" / "by-hash" / document.workload.sha256[:32]).iterdir())
    # 2. Its servers and the gateway.
    job = serve.start(workspace, [sources[name] for name in names], idle_minutes=60.0)
    with _ended(workspace, job.id), _gateway(workspace, options) as (url, announced):
        # 3. At each load, all names in turns.
        rows = []
        for place, streams in enumerate(options.streams):
            runs = [
                [
                    LoadPlan(
                        url=url,
                        model=name,
                        endpoint=document.options.endpoint,
                        load=Load("closed", streams),
                        seconds=options.seconds,
                        warmup_requests=1,
                        max_tokens=MAX_TOKENS,
                        prompts=str(workload),
                        first_line=place,
                    )
                ]
                * options.slices
                for name in (*names, gateway.MODEL)
            ]
            results = run_alternating(runs, folder / str(streams), first=place)
            for name, (records, _) in zip((*names, gateway.MODEL), results, strict=True):
                rows.append(_row(name, streams, records))
            print(table(("name", "streams", "tok/s"), [(r.name, r.streams, f"{r.mean:.1f}") for r in rows]), flush=True)
    return rows, announced


def _row(name: str, streams: int, records: Sequence[RequestRecord]) -> Row:
    by_slice = []
    for number in sorted({record.slice for record in records}):
        measured = [one for one in records if one.slice == number and one.ok and not one.warm and one.sent]
        if measured:
            start, end = min(one.sent or 0.0 for one in measured), max(one.end for one in measured)
            by_slice.append(sum(one.output_tokens or 0 for one in measured) / (end - start))
    return Row(name, streams, by_slice, len(records), sum(not one.ok for one in records))


@contextmanager
def _ended(workspace: Workspace, job_id: str) -> Iterator[None]:
    """Wait until the serve job's servers answer, and stop them at the end."""
    try:
        for view in jobs.watch(workspace, job_id):
            if serve.endpoints(workspace, job_id):
                break
            if view.ended:
                raise SystemExit(f"The servers did not start: {view.error}")
        yield
    finally:
        jobs.cancel_all_and_stop(workspace)


@contextmanager
def _gateway(workspace: Workspace, options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """`whetstone gateway --portfolio`: its address, and the sentences about the portfolio."""
    chosen = {"--max-kl": options.max_kl, "--ttft-p95": options.ttft_p95, "--tpot-p95": options.tpot_p95}
    limits = [word for flag, value in chosen.items() if value is not None for word in (flag, str(value))]
    command = [*PROMPT, sys.executable, "-m", "backend.cli.main", "gateway", "--port", "0"]
    command += ["--portfolio", options.evaluation, *limits]
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline().strip() for _ in range(5)]
            address = re.search(r"http://\S+/v1", lines[0])
            assert address is not None, lines
            yield address.group(), lines[4:]
        finally:
            process.terminate()


def switches_text(result: Switching) -> str:
    answered = ", ".join(f"{name} {count:,}" for name, count in result.answered.items())
    return (
        f"{result.requests:,} requests, streams jumping between {', '.join(map(str, JUMPS))}; "
        f"{result.lost:,} lost, {result.altered:,} altered; answered by {answered}; the server changed "
        f"{result.switches:,} times from one request to the next."
    )


def real_text(rows: Sequence[Row], announced: Sequence[str], note: str) -> str:
    """The table of all rows, and what became of the goals."""
    # 1. Each row against the best variant at its load.
    fixed = sorted({row.name for row in rows} - {gateway.MODEL})
    at = {(row.name, row.streams): row for row in rows}
    levels = sorted({row.streams for row in rows})
    best = {streams: max(fixed, key=lambda name: at[name, streams].mean) for streams in levels}
    single = max(fixed, key=lambda name: sum(log(at[name, streams].mean) for streams in levels))
    shown = [
        (
            row.streams,
            row.name,
            f"{row.mean:.1f}",
            f"{min(row.by_slice):.1f} to {max(row.by_slice):.1f}",
            f"{row.mean / at[best[row.streams], row.streams].mean:.2f}",
            row.requests,
            row.failed,
        )
        for row in sorted(rows, key=lambda row: row.streams)
    ]
    columns = ("streams", "model", "output tok/s", "slices", "x best at this load", "requests", "failed")
    # 2. The goals.
    auto = {streams: at[gateway.MODEL, streams].mean for streams in levels}
    least = min(auto[streams] / at[best[streams], streams].mean for streams in levels)
    gain = exp(fmean(log(auto[streams] / at[single, streams].mean) for streams in levels))
    lines = [
        *announced,
        "",
        "```",
        table(columns, shown),
        "```",
        f"- Goal: at no load below {LEAST} of the best variant there. Least {least:.2f}: {_outcome(least >= LEAST)}.",
        f"- Goal: {GAIN} of the best fixed variant ({single}) in the geometric mean. {gain:.2f}: "
        f"{_outcome(gain >= GAIN)}.",
    ]
    return "\n".join(lines if not note else [*lines, f"- {note}"])


def _outcome(met: bool) -> str:
    return "met" if met else "MISSED"


def write_part(title: str, text: str) -> None:
    """Replace one part of the page of results; the other stays."""
    page = RESULTS / "portfolio.json"
    parts: dict[str, Any] = json.loads(page.read_text()) if page.is_file() else {}
    machine = probe.probe()
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine['cpu']}, {machine['cores']} cores"
    parts[title] = f"{when}. {text}" if not text.startswith("\n") else f"{when}.\n{text}"
    page.write_text(json.dumps(parts, indent=1) + "\n")
    sections = "\n\n".join(f"## {name}\n\n{part}" for name, part in parts.items())
    (RESULTS / "portfolio.md").write_text(f"# The model `auto` of the gateway\n\n{sections}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    switches = parts.add_parser("switches")
    switches.add_argument("--requests", type=int, default=10_000)
    real = parts.add_parser("real")
    real.add_argument("evaluation")
    real.add_argument("--max-kl", type=float)
    real.add_argument("--ttft-p95", type=float)
    real.add_argument("--tpot-p95", type=float)
    real.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    real.add_argument("--slices", type=int, default=4)
    real.add_argument("--seconds", type=float, default=8.0)
    real.add_argument("--note", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as written:
        if options.part == "switches":
            text = switches_text(measure_switches(options.requests, Path(written)))
            write_part("Switches", text)
        else:
            rows, announced = measure_real(service.open_workspace(), options, Path(written))
            text = real_text(rows, announced, options.note)
            write_part(f"Real engines, {options.evaluation}", "\n" + text)
    print(text)


if __name__ == "__main__":
    main()
