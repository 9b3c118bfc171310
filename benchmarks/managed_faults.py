"""`python -m benchmarks.managed_faults [--of jobs|endpoints] [--seeds N] [--first N] [--out FILE]`: seeded faults over
the life of optimization jobs, or of endpoints, at SageMaker.

Prints the table of `tests/faults/managed.py`; exit 1 where one was lost, doubled or left running.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.faults import endpoint_life, job_life
from tests.faults.managed import campaign, table

LIVES = {"jobs": job_life, "endpoints": endpoint_life}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", choices=LIVES, default="jobs")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    seeds, life = range(arguments.first, arguments.first + arguments.seeds), LIVES[arguments.of]
    with tempfile.TemporaryDirectory() as folder:
        tallies, wrong = campaign(Path(folder), seeds, life.lives, life.KINDS)
    shown = "\n".join([table(tallies), *wrong])
    print(shown)
    if arguments.out:
        arguments.out.write_text(_record(arguments.of, seeds, shown, wrong))
    return 1 if wrong else 0


def _record(subject: str, seeds: range, shown: str, wrong: list[str]) -> str:
    command = f"python -m benchmarks.managed_faults --of {subject} --seeds {len(seeds)} --first {seeds.start}"
    head = f"# Seeded faults over {subject} at SageMaker\n\n`{command}`: {len(wrong)} of {len(seeds)} seeds went wrong."
    return f"{head}\n\n```\n{shown}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
