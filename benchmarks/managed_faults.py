"""`python -m benchmarks.managed_faults [--seeds N] [--first N]`: seeded faults over the life of optimization jobs at SageMaker.

Prints the table of `tests/faults/managed.py`; exit 1 where a job was lost, doubled or left running.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.faults.managed import campaign, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        tallies, wrong = campaign(Path(folder), range(arguments.first, arguments.first + arguments.seeds))
    print("\n".join([table(tallies), *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
