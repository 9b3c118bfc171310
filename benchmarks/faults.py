"""The campaign of seeded faults, many seeds: supervisors and workers killed, paused, cut off, their disks full, their
files torn.

    .venv/bin/python -m benchmarks.faults [--seeds N] [--first N] [--lanes N] [--faults WORDS] [--place PLACE]
                                        [--where local|Ray] [--wrong N] [--out FILE]

Prints a line for each seed with which something is wrong, and the table. `--out` records it after every seed, so that
what was run stays true when the rest is not. Ends with 1 where anything is wrong or missing. `make campaign` runs a few
of the seeds.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy

from backend import files
from backend.hardware import probe
from tests.faults import campaign
from tests.faults.injuries import FAULTS
from tests.faults.supervise import ALONE_S, AWAY_S, GRACE_S, HEADLESS_S, HEARTBEAT_S, LEASE_S, SOON_SILENT_S

HEAD = """# The campaign of seeded faults

{processor}, {cores} cores; Python {python}, SQLAlchemy {sqlalchemy}, {date}; load average {load:.1f} at the end.
`python -m benchmarks.faults --seeds {seeds} --first {first} --lanes {lanes}{where}{faults}`,
{seconds:.0f} s: {ended} of {seeds} seeds have ended.

A seed is a database and homes of its own, artifacts on disk or in S3 (moto's server behind a proxy that breaks what it
is told to), two to four jobs, and one fault at a moment that the seed chooses. Supervisors are real processes of the
real main, forked; workers are real processes of the real top level, whose work is a chain of hashes (tests/faults).
Clocks are shortened: lease {lease:.0f} s, heartbeat {heartbeat} s, grace {grace:.0f} s; silence {silent:.0f} s
where it is the fault.
{cluster}The columns of states count jobs as they stood once all was over and before anybody resumed them; then each was
resumed until it succeeded, every supervisor was stopped, and the checker read events, claims, artifacts and processes
(`wrong`: seeds).
"""


CLUSTER = """Jobs ran on the nodes of a real Ray cluster, a head and two nodes on loopback, which one seed at a time
has. What is not heard of counts as gone after {away:.0f} s, a keeper that nobody asks ends after {alone:.0f} s,
a node without its head after {head} s.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2 * len(FAULTS))
    parser.add_argument(
        "--first", type=int, default=0, help="the first seed; a seed has the same fault and moments each time"
    )
    parser.add_argument("--lanes", type=int, default=campaign.LANES, help="beside each other, of each database")
    parser.add_argument("--faults", default="", help="only those whose name holds this")
    parser.add_argument("--place", choices=campaign.PLACES, help="where artifacts go; else both")
    parser.add_argument(
        "--where", choices=(campaign.LOCAL, campaign.RAY), default=campaign.LOCAL, help="where jobs run"
    )
    parser.add_argument("--wrong", type=int, default=0, help="end after so many seeds with which something is wrong")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C: servers and workers go too
    places = [arguments.place] if arguments.place else campaign.PLACES
    chosen = campaign.cases(arguments.first, arguments.seeds, arguments.faults, places, arguments.where)
    outcomes = record(campaign.run(chosen, arguments.lanes), arguments)
    return int(len(outcomes) < len(chosen) or any(outcome["wrong"] for outcome in outcomes))


def record(running: Iterator[dict[str, Any]], request: argparse.Namespace) -> list[dict[str, Any]]:
    """What came of each seed; the file is true after every one, and what has ended is printed, also where the rest is
    cut off."""
    outcomes, began, facts = list[dict[str, Any]](), time.monotonic(), probe.probe()
    try:
        for outcome in running:
            outcomes.append(outcome)
            if outcome["wrong"]:
                print(f"{sentence(outcome)}\n{outcome['log']}", file=sys.stderr, flush=True)
            if request.out:
                files.write(request.out, report(outcomes, request, facts, time.monotonic() - began), flush=False)
            if request.wrong and sum(bool(one["wrong"]) for one in outcomes) >= request.wrong:
                break
    finally:
        print(report(outcomes, request, facts, time.monotonic() - began))
    return outcomes


def sentence(outcome: dict[str, Any]) -> str:
    named = [str(outcome[name]) for name in campaign.KEYS]
    return f"seed {outcome['seed']}, {', '.join(named)}: {outcome['wrong']}"


def report(outcomes: list[dict[str, Any]], request: argparse.Namespace, facts: dict[str, Any], seconds: float) -> str:
    """The page under benchmarks/results, of the seeds that have ended."""
    head = HEAD.format(
        processor=facts["cpu"],
        cores=facts["cores"],
        python=platform.python_version(),
        sqlalchemy=sqlalchemy.__version__,
        date=datetime.now(UTC).date(),
        load=os.getloadavg()[0],
        seeds=request.seeds,
        first=request.first,
        seconds=seconds,
        ended=len(outcomes),
        faults=f" --faults '{request.faults}'" if request.faults else "",
        lanes=request.lanes,
        where="" if request.where == campaign.LOCAL else f" --where {request.where}",
        cluster="" if request.where == campaign.LOCAL else CLUSTER.format(away=AWAY_S, alone=ALONE_S, head=HEADLESS_S),
        lease=LEASE_S,
        heartbeat=HEARTBEAT_S,
        grace=GRACE_S,
        silent=SOON_SILENT_S,
    )
    wrong = [f"- {sentence(outcome)}" for outcome in outcomes if outcome["wrong"]]
    return f"{head}\n```\n{campaign.summary(outcomes)}\n```\n" + "\n".join(wrong)


if __name__ == "__main__":
    sys.exit(main())
