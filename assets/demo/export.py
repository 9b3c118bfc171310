"""Writes assets/demo anew from a home in which `whetstone demo` ran.

WHETSTONE_HOME=FOLDER .venv/bin/python assets/demo/export.py
"""

from __future__ import annotations

import sys

from backend import service
from backend.domain.errors import WhetstoneError
from backend.service.studio import demo_export


def main() -> int:
    try:
        files = demo_export.export(service.open_workspace())
    except WhetstoneError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for file in files:
        print(f"{file.stat().st_size:>9,} {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
