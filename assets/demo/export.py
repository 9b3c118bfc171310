"""Writes the demonstration of a kind of machine from a home in which `whetstone demo` ran on one.

WHETSTONE_HOME=FOLDER .venv/bin/python assets/demo/export.py NAME, such as amd-epyc or intel-xeon
"""

from __future__ import annotations

import sys

from backend import service
from backend.domain.errors import WhetstoneError
from backend.service.studio import demo_export


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        files = demo_export.export(service.open_workspace(), demo_export.FOLDERS / sys.argv[1])
    except WhetstoneError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for file in files:
        print(f"{file.stat().st_size:>9,} {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
