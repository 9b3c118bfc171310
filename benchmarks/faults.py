"""The campaign of seeded faults, many seeds: supervisors and workers killed, paused, cut off, their disks full, their files torn.

    .venv/bin/python -m benchmarks.faults [--seeds N] [--first N] [--lanes N] [--faults WORDS] [--out FILE]

Prints a line for each seed with which something is wrong, and the table; `--out` records it. Ends with 1 where anything is
wrong. `make campaign` runs a few of the seeds.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy

from backend.hardware import probe
from tests.faults import campaign
from tests.faults.injuries import FAULTS
from tests.faults.supervise import GRACE_S, HEARTBEAT_S, LEASE_S, SOON_SILENT_S

HEAD = """# The campaign of seeded faults

{processor}, {cores} cores; Python {python}, SQLAlchemy {sqlalchemy}, {date}; load average {load:.1f} at the end.
`python -m benchmarks.faults --seeds {seeds} --first {first}`, {seconds:.0f} s.

A seed is a database and homes of its own, two to four jobs, and one fault at a moment that the seed chooses. Supervisors are
real processes of the real main, forked; workers are real processes of the real top level, whose work is a chain of hashes
(tests/faults). Clocks are shortened: lease {lease:.0f} s, heartbeat {heartbeat} s, grace {grace:.0f} s; silence {silent:.0f} s
where it is the fault.
The columns of states count jobs as they stood once all was over and before anybody resumed them; then each was resumed until it
succeeded, every supervisor was stopped, and the checker read events, claims, artifacts and processes (`wrong`: seeds).
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2 * len(FAULTS))
    parser.add_argument("--first", type=int, default=0, help="the first seed; a seed has the same fault and moments each time")
    parser.add_argument("--lanes", type=int, default=campaign.LANES, help="beside each other, of each database")
    parser.add_argument("--faults", default="", help="only those whose name holds this")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    outcomes, began = [], time.monotonic()
    for each in campaign.run(campaign.cases(asked.first, asked.seeds, asked.faults), asked.lanes):
        outcomes.append(each)
        if each["wrong"]:
            print(f"seed {each['seed']}, {each['fault']}, {each['database']}: {each['wrong']}\n{each['log']}", file=sys.stderr)
    told = report(outcomes, asked, time.monotonic() - began)
    print(told)
    if asked.out:
        asked.out.write_text(told)
    return int(any(each["wrong"] for each in outcomes))


def report(outcomes: list[dict[str, Any]], asked: argparse.Namespace, seconds: float) -> str:
    """The page under benchmarks/results."""
    facts = probe.probe()
    head = HEAD.format(
        processor=facts["cpu"], cores=facts["cores"], python=platform.python_version(), sqlalchemy=sqlalchemy.__version__,
        date=datetime.now(UTC).date(), load=os.getloadavg()[0], seeds=asked.seeds, first=asked.first, seconds=seconds,
        lease=LEASE_S, heartbeat=HEARTBEAT_S, grace=GRACE_S, silent=SOON_SILENT_S,
    )  # fmt: skip
    wrong = [f"- seed {each['seed']}, {each['fault']}, {each['database']}: {each['wrong']}" for each in outcomes if each["wrong"]]
    return f"{head}\n```\n{campaign.summary(outcomes)}\n```\n" + "\n".join(wrong)


if __name__ == "__main__":
    sys.exit(main())
