"""Asks the public index which pinned packages have known vulnerabilities (pip-audit), and fails where one has.

audit.py            every lock in assets/locks; what was answered is kept in build/audit.json

Where the index names no vulnerabilities, as a mirror does not, the packages that nobody judged are counted, it says
that nothing was audited, and goes on: who has only a mirror can still run the campaign.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from backend.settings import CHECKOUT

LOCKS = CHECKOUT / "assets" / "locks"
KEPT = CHECKOUT / "build" / "audit.json"
ASKED_S = 300


def asked(lock: Path, folder: Path) -> list[dict[str, Any]]:
    """pip-audit's word on each package of the lock that has hashes. Empty where no index answered in time."""
    listed = folder / lock.name
    lines = lock.read_text().splitlines(keepends=True)
    listed.write_text("".join(line for line in lines if not line.startswith("torch==") or line.endswith("\\\n")))
    options = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", *options, "-r", str(listed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ASKED_S)
    except subprocess.TimeoutExpired:
        return []
    if not done.stdout.startswith("{"):
        print(done.stderr.strip().rpartition("\n")[-1])
        return []
    rows: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    return rows


def main() -> int:
    """Exit code 1 where a package has a known vulnerability."""
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for lock in sorted(LOCKS.glob("*.txt")):
            rows = kept[lock.name] = asked(lock, Path(folder))
            judged = [row for row in rows if "skip_reason" not in row]
            bad = [
                f"{row['name']} {row['version']}: {', '.join(v['id'] for v in row['vulns'])}"
                for row in judged
                if row["vulns"]
            ]
            counts = f"{len(judged)} of {len(rows)} packages judged, {len(bad)} with known vulnerabilities"
            print(f"{lock.name}: {counts}")
            print("".join(f"  {line}\n" for line in bad), end="")
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(kept, indent=1))
    if not any("skip_reason" not in row for rows in kept.values() for row in rows):
        print("No service of vulnerabilities answered here, so nothing was audited.")
    return int(any(row.get("vulns") for rows in kept.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
