"""One virtual environment's folder: made, filled by pip, listed, and marked as complete.

Knows nothing of which engine it is for.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import DiskFull, WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.machine.environments import Build, EnvironmentInfo
from backend.engines import uv_installer
from backend.engines.finished_run import DISK_FULL, run_to_end

MARKER = "INSTALLED.json"
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)((?: \\\n[ ]+--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)
"""A package, its version, and the hashes of all its files, as `.ci/lock` writes them."""
Pinned = tuple[str, str, str]
"""Name, version and hashes, as REQUIREMENT finds them."""


def installed(folder: Path) -> dict[str, str]:
    """Return the version of each installed package by its normalized name, from the packages' metadata."""
    paths = [str(path) for path in folder.glob("lib/python3*/site-packages")]
    return {normal_name(dist.metadata["Name"]): dist.version for dist in importlib.metadata.distributions(path=paths)}


def read_marker(folder: Path) -> dict[str, Any] | None:
    """Return the marker of a complete environment; None where there is none."""
    marker = folder / MARKER
    document: dict[str, Any] | None = json.loads(marker.read_text()) if marker.exists() else None
    return document


def clean(folder: Path) -> None:
    """Remove the environment, its marker first."""
    (folder / MARKER).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def create(folder: Path, progress: Progress) -> None:
    """Make the environment anew, whatever an interrupted installation left. It has no pip: the studio's works on it."""
    clean(folder)
    progress.phase("create", f"Creating {folder}", weight=0.05)
    code, output = run_pip([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    if code:
        raise pip_failure("creating the virtual environment", output)


def list_requirements(rows: list[Pinned], file: Path) -> list[str]:
    """Write these packages to `file` and return pip's arguments that install them from it."""
    files.write(file, "".join(f"{name}=={version}{hashes}\n" for name, version, hashes in rows))
    return [*(["--require-hashes"] if all(hashes for *_, hashes in rows) else []), "-r", str(file)]


def write_marker(
    environment: EnvironmentInfo,
    folder: Path,
    lock: Path | None,
    build: Build | None,
    origin: str,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the marker of a finished environment; one from a vendor's index has neither lock nor build.

    `facts` replaces what the metadata of packages does not say of programs.
    """
    # What is there, whatever the lock says, is what a reader wants to know.
    packages = installed(folder)
    document = {
        "name": environment.name,
        "build": build or "vendor",
        "version": packages.get(environment.main[build or "cpu"]),
        **({"lock": lock.name, "lock_sha256": file_sha256(lock)} if lock else {"lock": None}),
        "origin": origin,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": dict(sorted(packages.items())),
        **(facts or {}),
    }
    files.write(folder / MARKER, json.dumps(document, indent=2))
    return document


def pip_command(folder: Path) -> list[str]:
    """Return the beginning of a command of the studio's pip that works on this environment."""
    return [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]


def run_uv(folder: Path, arguments: list[str], progress: Progress) -> bool:
    """Install with uv as `pip install` with these arguments would; False where that did not work, and pip is to try."""
    prepared = uv_installer.make_command(folder / "bin" / "python", arguments)
    if prepared is None:
        return False
    command, environment = prepared
    return run_pip(command, progress, environment)[0] == 0


def run_pip(
    command: list[str], progress: Progress | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command, print its output as it comes, and return exit code and output; it ends if we are interrupted."""
    # 1. Count the packages that pip has got; uv names those that take long to download.
    collected = 0

    def follow(line: str) -> None:
        nonlocal collected
        collected += line.startswith("Collecting ")
        if progress is not None and line.startswith("Collecting "):
            progress.advance(collected)
        if progress is not None and line.startswith(("Downloading ", " Downloaded ")):
            progress.note(line.strip())

    # 2. Run it.
    finished = run_to_end(command, follow=follow, environment=environment)
    return finished.code, "".join(finished.lines)


def compile_modules(folder: Path) -> None:
    """Compile all Python modules on all cores: programs that may not write them would compile them at each start."""
    compileall = [str(folder / "bin" / "python"), "-m", "compileall", "-qq", "-j", "0", str(folder / "lib")]
    run_pip(compileall)


def pip_failure(doing: str, output: str) -> WorkError:
    """Make the error of a failed command: what is known of it, else its last line that says ERROR."""
    if DISK_FULL in output:
        return DiskFull(f"The disk filled up while {doing}: free some space and install again.")
    changed = re.search(r"DO NOT MATCH THE HASHES.*?\n +(\S+==\S+) ", output, re.DOTALL)
    if changed is not None:
        return WorkError(
            f"The file of {changed[1]} is not one that the lock names, so nothing of it was installed: look where pip "
            "takes it from (`pip config list`), or name an index that has the original (`PIP_INDEX_URL`)."
        )
    errors = [
        line.removeprefix("ERROR: ").strip() for line in output.splitlines() if re.match(r"ERROR:|\w*Error:", line)
    ]
    lines = errors or [line for line in output.splitlines() if line.strip()] or ["no output"]
    return WorkError(f"It failed while {doing}: {lines[-1].rstrip('.')}; the job's log has all of it.")


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
