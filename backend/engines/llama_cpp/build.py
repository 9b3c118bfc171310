"""Builds llama.cpp's own programs from the source that the package llama-cpp-python carries, once a machine.

The result is in a cache that all checkouts share, in a folder named by everything that it depends on. It gets that name
only when it is complete; an interrupted build is continued by the next one. One build of it runs at a time, and its
lock is held by its compilers too, so that one whose worker was killed does not write beside its successor. Knows
nothing of jobs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from backend import files
from backend.domain.errors import DiskFull, WorkError
from backend.domain.jobs.progress import Progress
from backend.engines.finished_run import run_to_end, shorten_reason

PROGRAMS = ("llama-server", "llama-quantize", "llama-imatrix")
SOURCE, COMMIT = "llama-cpp-python", "0c1e57098"
"""The package with the source, and the commit of llama.cpp that it carries (its CHANGELOG.md)."""
OPTIONS = (
    "CMAKE_BUILD_TYPE=Release",
    "BUILD_SHARED_LIBS=OFF",
    "GGML_NATIVE=ON",
    "GGML_CCACHE=OFF",
    "LLAMA_OPENSSL=OFF",
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_APP=OFF",
    "LLAMA_BUILD_UI=OFF",
    "LLAMA_USE_PREBUILT_UI=OFF",
    "LLAMA_BUILD_NUMBER=0",
    f"LLAMA_BUILD_COMMIT={COMMIT}",
)
"""No networking library and no page: the server answers this machine alone. The two last keep git out of the build."""
AMX = "amx_tile"
"""The feature flag of a processor on which llama.cpp multiplies in tiles (AMX)."""
TILE_CONFIG = """#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])(config)))
#endif
"""
"""Read before every C++ file where the processor has AMX. GCC 12.2, Debian 12's, takes 8 of the 64 bytes of a tile
configuration as read and drops the stores of the others, so that the first product ended with an illegal instruction
(GCC bug 114098; ggml-org/llama.cpp pull request 26954)."""
TREE = "vendor/llama.cpp/"
RECORD = "BUILT.json"
DISK_BYTES = 1_000_000_000
"""Disk that source and objects take while it builds."""
NICE = ("/usr/bin/nice", "-n", "10")
_STEP = re.compile(r"^\[(\d+)/(\d+)\] ")
_FAILURE = re.compile(r"\berror\b|\bERROR\b|CMake Error")


class Pin(NamedTuple):
    """A package of the lock; `text` is its line with all hashes."""

    name: str
    version: str
    text: str


class Compiler(NamedTuple):
    path: str
    version: str
    """The first line of what it says of itself."""


def build(lock: Path, cache: Path, progress: Progress) -> dict[str, Any]:
    """Return the record of the complete build for this machine, made now where it is missing.

    `folder` in it has the programs. Raises WorkError without a compiler or with a sentence on what failed, DiskFull.
    """
    # 1. Find what was built before: that needs no compiler.
    pins = read_pins(lock)
    compiler = find_compiler()
    if (known := find_built(cache, pins, compiler)) is not None:
        progress.note(f"llama.cpp {known['version']} was built here before: {known['folder']}.")
        return known
    if compiler is None:
        raise WorkError(
            "llama.cpp is built here and no C++ compiler was found: install one (`apt install g++`), then install the "
            "engine again."
        )

    # 2. Build it alone; whoever waited takes what the other made.
    folder = cache / build_key(pins, compiler)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("ab") as lock_file:
        files.wait_for_lock(
            lock_file, fcntl.LOCK_EX, lambda: progress.note("Another build of llama.cpp runs: waiting.")
        )
        if (known := read_record(folder)) is not None:
            return known
        return _Build(pins, compiler, folder, lock_file, progress).run()


def find_built(cache: Path, pins: Iterable[Pin], compiler: Compiler | None) -> dict[str, Any] | None:
    """Return the record of the build that this machine would make; without a compiler, of any by these pins for this
    processor."""
    if compiler is not None:
        return read_record(cache / build_key(pins, compiler))
    records = (read_record(folder) for folder in sorted(cache.glob(f"{_source(pins).version}-*")))
    return next((record for record in records if record and is_of(record, pins)), None)


def is_of(record: Mapping[str, Any], pins: Iterable[Pin]) -> bool:
    """Tell whether a record is of a build by these pins and today's options for this processor, whatever compiled
    it."""
    mine = {"lock": _digest(*(pin.text for pin in pins)), "processor": processor_key(), "options": list_options()}
    return {name: record.get(name) for name in mine} == mine


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of a complete build; None where there is none."""
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(record, dict) and all(os.access(folder / name, os.X_OK) for name in PROGRAMS)
    return {**record, "folder": str(folder)} if whole else None


def build_key(pins: Iterable[Pin], compiler: Compiler) -> str:
    """Return the name of a build: the version, and a digest of source, options, compiler and processor."""
    listed = list(pins)
    digest = _digest(*(pin.text for pin in listed), *list_options(), compiler.version, processor_key())
    return f"{_source(listed).version}-{digest}"


def list_options() -> list[str]:
    """Return everything that a build for this processor is told, cmake's options first."""
    return [*OPTIONS, *([f"tile_config.h={_digest(TILE_CONFIG)}"] if AMX in processor_flags() else [])]


def processor_key() -> str:
    """Return a digest of the feature flags of the processor: a native build runs on no processor that lacks one."""
    return _digest(*sorted(processor_flags()))


def processor_flags() -> frozenset[str]:
    """Return the feature flags of the processor, by their names in Linux."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def read_pins(lock: Path) -> list[Pin]:
    """Return the packages of a lock."""
    rows = re.findall(r"^([\w.-]+)==([^\s\\]+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)", lock.read_text(), re.MULTILINE)
    return [Pin(name, version, f"{name}=={version}{hashes}") for name, version, hashes in rows]


def find_compiler() -> Compiler | None:
    """Return the C++ compiler that cmake would take; None where there is none."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        path = shutil.which(name)
        if path is not None:
            output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            return Compiler(path, next(iter(output.stdout.splitlines()), name))
    return None


def _source(pins: Iterable[Pin]) -> Pin:
    return next(pin for pin in pins if pin.name == SOURCE)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


class _Build:
    """One build. What it has done so far stays in `work` for the next attempt."""

    def __init__(self, pins: list[Pin], compiler: Compiler, folder: Path, lock: BinaryIO, progress: Progress) -> None:
        self._pins, self._compiler, self._folder, self._lock = pins, compiler, folder, lock
        self._progress = progress
        self._work = folder.with_name(f".building-{folder.name}")
        self._steps = 0

    def run(self) -> dict[str, Any]:
        self._work.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._work).free < DISK_BYTES:
            raise DiskFull(f"Building llama.cpp takes {DISK_BYTES / 1e9:.0f} GB in {self._work}: free some space.")
        # 1. The tools, the source, the build.
        tools = self._make_tools()
        source = self._fetch_source(tools)
        programs = self._compile(tools, source)

        # 2. Check that it runs here before anybody sees it.
        self._progress.phase("check", "Starting what was built", weight=0.02)
        self._run([str(programs / "llama-server"), "--version"], "starting llama-server")

        # 3. Make it visible as a whole, and remove the rest.
        with files.staged_folder(self._folder) as staged:
            for name in PROGRAMS:
                shutil.copy2(programs / name, staged / name)
            shutil.copy2(source / "LICENSE", staged / "LICENSE-llama.cpp")
            files.write(staged / RECORD, json.dumps(self._record(), indent=1))
        shutil.rmtree(self._work, ignore_errors=True)
        record = read_record(self._folder)
        assert record is not None
        return record

    def _record(self) -> dict[str, Any]:
        source = _source(self._pins)
        return {
            "version": f"{source.version} ({COMMIT})",
            "lock": _digest(*(pin.text for pin in self._pins)),
            "processor": processor_key(),
            "compiler": self._compiler.version,
            "options": list_options(),
            "packages": {pin.name: pin.version for pin in self._pins},
        }

    def _make_tools(self) -> Path:
        """Make an environment with cmake and Ninja and return its folder of programs."""
        folder, done = self._work / "tools", self._work / "tools.done"
        if not done.exists():
            self._progress.phase("tools", "Fetching cmake and Ninja", weight=0.03)
            shutil.rmtree(folder, ignore_errors=True)
            self._run([sys.executable, "-m", "venv", str(folder)], "creating the build's environment")
            rest = [pin for pin in self._pins if pin.name != SOURCE]
            self._pip(folder / "bin", "install", "--only-binary", ":all:", pins=rest)
            done.touch()
        return folder / "bin"

    def _fetch_source(self, tools: Path) -> Path:
        """Download the package, whose hash the lock has, and unpack llama.cpp of it."""
        folder = self._work / "source"
        if folder.is_dir():
            return folder
        source = _source(self._pins)
        self._progress.phase("download", f"Downloading {SOURCE} {source.version}", weight=0.05)
        options = ("--no-binary", ":all:", "--no-build-isolation", "--dest", str(self._work))
        self._pip(tools, "download", *options, pins=[source])
        archive = next(self._work.glob("*.tar.gz"))
        with files.staged_folder(folder) as staged, tarfile.open(archive) as opened:
            for member in opened:
                _, _, path = member.name.partition("/")
                if path.startswith(TREE) and not path.startswith(f"{TREE}.git"):
                    member.name = path.removeprefix(TREE)
                    opened.extract(member, staged, filter="data")
        archive.unlink()
        return folder

    def _compile(self, tools: Path, source: Path) -> Path:
        """Configure and compile; Ninja goes on where an earlier attempt ended. Returns the folder of programs."""
        output, jobs = self._work / "objects", len(os.sched_getaffinity(0))
        self._progress.phase("configure", "Configuring llama.cpp for this processor", weight=0.02)
        generator = (
            "-G",
            "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
            f"-DCMAKE_CXX_COMPILER={self._compiler.path}",
        )
        options = [f"-D{option}" for option in OPTIONS]
        if AMX in processor_flags():
            header = self._work / "tile_config.h"
            header.write_text(TILE_CONFIG)
            options.append(f'-DCMAKE_CXX_FLAGS=-include "{header}"')
        self._run([str(tools / "cmake"), "-S", str(source), "-B", str(output), *generator, *options], "configuring")

        command = [*NICE, str(tools / "ninja"), "-C", str(output), "-j", str(jobs), *PROGRAMS]
        self._run(command, "compiling", self._advance)
        return output / "bin"

    def _advance(self, line: str) -> None:
        """Follow Ninja's count of steps, which is known from its first line on."""
        match = _STEP.match(line)
        if match is None:
            return
        done, steps = int(match[1]), int(match[2])
        if not self._steps:
            self._steps = steps
            message = f"Compiling llama.cpp ({steps} steps); that takes some minutes"
            self._progress.phase("compile", message, total=steps, unit="steps", weight=0.88)
        self._progress.advance(done)

    def _pip(self, tools: Path, verb: str, *options: str, pins: list[Pin]) -> None:
        requirements = self._work / "requirements.txt"
        requirements.write_text("".join(f"{pin.text}\n" for pin in pins))
        command = [str(tools / "python"), "-m", "pip", "--disable-pip-version-check", verb, "--no-input", "--no-deps"]
        self._run([*command, "--require-hashes", *options, "-r", str(requirements)], f"fetching {pins[-1].name}")

    def _run(self, command: list[str], doing: str, heard: Callable[[str], None] = lambda line: None) -> None:
        """Run to the end; the program inherits the lock. Raises DiskFull, and WorkError with the first line that says
        error."""
        finished = run_to_end(command, follow=heard, pass_fds=(self._lock.fileno(),))
        if finished.code == 0:
            return
        if finished.is_disk_full:
            raise DiskFull(f"The disk filled up while {doing} llama.cpp: free some space and install it again.")
        reason = shorten_reason(finished.matching_lines(_FAILURE)[0])
        raise WorkError(f"It failed while {doing} llama.cpp: {reason}; the job's log has all of it.")
