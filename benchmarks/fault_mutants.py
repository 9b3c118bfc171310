"""What the campaign of seeded faults would notice: the product broken on purpose, one place at a time, in a copy of it.

    .venv/bin/python -m benchmarks.fault_mutants [--seeds N] [--first N] [--lanes N] [--mutants WORDS] [--out FILE]

Each mutant runs the seeds in their order until the first with which something is wrong. The page says which seed that
was, or that none was: such a break is invisible to the campaign, and other tests have to hold it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from backend import files
from backend.cli.output import table
from backend.hardware import probe
from tests.faults import campaign
from tests.faults.injuries import FAULTS

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("backend", "benchmarks", "tests")
ENDED = re.compile(r": (\d+) of \d+ seeds\s+have ended")
WRONG = re.compile(r"^- seed \d+, (.+)$", re.MULTILINE)
WORDS = 90
HEADER = ("break", "noticed", "seeds ended", "seconds", "by")
HEAD = """# Breaks that the campaign of seeded faults notices

{processor}, {cores} cores; Python {python}, {date}; load average {load:.1f} at the end.
`python -m benchmarks.fault_mutants --seeds {seeds} --first {first} --lanes {lanes}{mutants}`:
{noticed} of {all} breaks were noticed.

Each break was made in a copy of the product, and the campaign (benchmarks/faults.py) ran there until the first seed
with which something was wrong. `seeds ended` counts those that ended by then, of {seeds}; several run beside each
other.
"""


class Mutant(NamedTuple):
    """`path` holds `was` exactly once; `becomes` is what stands there instead."""

    name: str
    path: str
    was: str
    becomes: str


LEASES, SUPERVISOR = "backend/store/leases.py", "backend/supervisor/supervisor.py"
MUTANTS = (
    Mutant(
        "claims are not given back",
        LEASES,
        "where(col(ClaimRow.job_id) == lease.job)",
        'where(col(ClaimRow.job_id) == "")',
    ),
    Mutant("events are carried again", SUPERVISOR, "segment=segments[-1][0])", "segment=row.segment)"),
    Mutant(
        "nothing that a worker left is ended",
        "backend/launchers/local.py",
        "processes.end(processes.find_marked(MARK, self._mark(job_id)), SWEEP_GRACE_S)",
        "return",
    ),
    Mutant("attempts share a channel", "backend/channel.py", "folder / str(attempt)", 'folder / "1"'),
    Mutant("jobs of the supervisor before are not adopted", SUPERVISOR, "leases.adopt(session, self.row)", "None"),
    Mutant(
        "a damaged channel ends no job",
        SUPERVISOR,
        "except ChannelDamaged as error:",
        "except ZeroDivisionError as error:",
    ),
    Mutant(
        "a result is registered unverified",
        "backend/artifacts/disk.py",
        "artifact_folder.verify(staged, artifact_folder.read_manifest(staged))",
        "pass",
    ),
    Mutant(
        "a dropped connection is final",
        "backend/store/database.py",
        "if not _is_transient(error.__cause__):",
        "if True:",
    ),
    Mutant(
        "a change names neither attempt nor token",
        LEASES,
        ", col(JobRow.attempt) == lease.attempt)\n    statement = statement.where(col(JobRow.token) == lease.token, "
        "col(",
        ")\n    statement = statement.where(col(",
    ),
    Mutant("rows changed are not counted", LEASES, "(**values)) != 1:", "(**values)) < 0:"),
    Mutant(
        "what was refused stays in its place",
        "backend/supervisor/finish.py",
        "registry.withdraw(",
        "(lambda *_: None)(",
    ),
    Mutant("a change names no token", LEASES, "where(col(JobRow.token) == lease.token, col(", "where(col("),
    Mutant("a change names no attempt", LEASES, ", col(JobRow.attempt) == lease.attempt)", ")"),
    Mutant(
        "nothing is kept to go on from",
        "backend/channel.py",
        "path.rename(self._folder / path.name)",
        "shutil.rmtree(path)",
    ),
    Mutant(
        "an artifact is copied to its place",
        "backend/artifacts/artifact_folder.py",
        "    staged.rename(destination)\n",
        "    shutil.copytree(staged, destination)\n",
    ),
    Mutant("a lease never runs out", LEASES, "moment + timedelta(seconds=LEASE_SECONDS)", "moment + timedelta(days=1)"),
)


class MutantResult(NamedTuple):
    """Of one mutant: seeds that ended, what was wrong with the first such (a sentence), and how long it took."""

    mutant: Mutant
    ended: int
    wrong: str | None
    seconds: float


@contextmanager
def broken(mutant: Mutant) -> Iterator[Path]:
    """A copy of the product with that break. Raises ValueError where its place is not there exactly once."""
    folder = Path(tempfile.mkdtemp(prefix="whetstone-mutant-"))
    try:
        for name in COPIED:
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "recorded", "results")
            )
        (folder / "assets").symlink_to(ROOT / "assets")
        path = folder / mutant.path
        path.write_text(changed(mutant, path.read_text()))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def changed(mutant: Mutant, source: str) -> str:
    if source.count(mutant.was) != 1:
        raise ValueError(
            f"{mutant.path} has {source.count(mutant.was)} times what `{mutant.name}` changes: mend the list."
        )
    return source.replace(mutant.was, mutant.becomes)


def tried(mutant: Mutant, request: argparse.Namespace) -> MutantResult:
    """The campaign in a copy with that break."""
    began = time.monotonic()
    with broken(mutant) as folder:
        page = folder / "faults.md"
        options = [
            "--seeds",
            request.seeds,
            "--first",
            request.first,
            "--lanes",
            request.lanes,
            "--wrong",
            1,
            "--out",
            page,
        ]
        command = [sys.executable, "-m", "benchmarks.faults", *map(str, options)]
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as running:
            try:
                message = running.communicate()[1].decode(errors="replace")
            finally:
                running.terminate()  # as Ctrl-C: what it started goes too
        text = page.read_text() if page.exists() else ""
    ended, wrong = ENDED.search(text), WRONG.search(text)
    reported = (
        wrong[1] if wrong else None if running.returncode == 0 else (message.strip().splitlines() or ["it ended"])[-1]
    )
    reported = reported and reported.replace(sys.executable, "python").replace(str(folder), "")
    return MutantResult(mutant, int(ended[1]) if ended else 0, reported, time.monotonic() - began)


def report(results: list[MutantResult], request: argparse.Namespace) -> str:
    """The page under benchmarks/results, of the mutants that were tried."""
    facts = probe.probe()
    head = HEAD.format(
        processor=facts["cpu"],
        cores=facts["cores"],
        python=platform.python_version(),
        date=datetime.now(UTC).date(),
        load=os.getloadavg()[0],
        seeds=request.seeds,
        first=request.first,
        lanes=request.lanes,
        mutants=f" --mutants '{request.mutants}'" if request.mutants else "",
        noticed=sum(attempt.wrong is not None for attempt in results),
        all=len(results),
    )
    rows = [
        (
            attempt.mutant.name,
            "yes" if attempt.wrong else "no",
            attempt.ended,
            round(attempt.seconds),
            (attempt.wrong or "")[:WORDS],
        )
        for attempt in results
    ]
    return f"{head}\n```\n{table(HEADER, rows)}\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2 * len(FAULTS))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=campaign.LANES)
    parser.add_argument("--mutants", default="", help="only those whose name holds this")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it started goes too
    results: list[MutantResult] = []
    for mutant in (candidate for candidate in MUTANTS if arguments.mutants in candidate.name):
        results.append(tried(mutant, arguments))
        if arguments.out:
            files.write(arguments.out, report(results, arguments), flush=False)
    print(report(results, arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
