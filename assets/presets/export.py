"""Writes assets/presets anew from a home in which the starter presets were evaluated.

WHETSTONE_HOME=FOLDER .venv/bin/python assets/presets/export.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from backend import service
from backend.domain.errors import WhetstoneError
from backend.service import showcase


def main() -> int:
    try:
        files = showcase.export_results(service.open_workspace(), Path(__file__).parent)
    except WhetstoneError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for file in files:
        print(f"{file.stat().st_size:>9,} {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
