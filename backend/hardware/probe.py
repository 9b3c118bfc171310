"""Reads this machine's hardware: processor and its features, memory, accelerators, compiler, disk. Imports no torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)
"""Processor features that decide which kernels run."""
QUERY = ("index", "name", "memory.total", "compute_cap", "driver_version")
TOOL_SECONDS = 20


class Accelerator(NamedTuple):
    kind: str
    number: int
    name: str
    memory_bytes: int
    compute_capability: str
    driver: str


def probe() -> dict[str, Any]:
    """Return all of it, as it is written beside a measurement. Sizes in bytes."""
    model, flags = _processor()
    return {
        "cpu": model,
        "cores": cores(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_bytes": total_memory(),
        "accelerators": [accelerator._asdict() for accelerator in accelerators()],
        "os": _system(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def cores() -> int:
    """Logical processors that this process may use."""
    return len(os.sched_getaffinity(0))


@lru_cache(maxsize=1)
def _processor() -> tuple[str, frozenset[str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def total_memory() -> int:
    """Bytes that processes here may use together: the machine's, or the container's limit where that is lower."""
    limit = _cgroup("memory.max")
    return min(psutil.virtual_memory().total, limit) if limit else int(psutil.virtual_memory().total)


def free_memory() -> int:
    """Bytes that can be had without swapping, within the container's limit."""
    available = int(psutil.virtual_memory().available)
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    return min(available, max(0, limit - used)) if limit and used else available


def _cgroup(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def free_disk(path: Path) -> int:
    """Bytes that this user may still write on the disk that holds `path`, which need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def has_nvidia() -> bool:
    """Return whether an NVIDIA driver is loaded. Needs no library."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


@lru_cache(maxsize=1)
def accelerators() -> tuple[Accelerator, ...]:
    """The NVIDIA GPUs that nvidia-smi lists, in its order; none where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    return parse_nvidia(run_tool(tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"))


def run_tool(*command: str) -> str:
    """Return what a program prints; empty if it does not run, fails or takes too long."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parse_nvidia(table: str) -> tuple[Accelerator, ...]:
    """Rows of `nvidia-smi --query-gpu` in the order of QUERY, memory in MiB. A row that is not one is left out."""
    rows = (tuple(cell.strip() for cell in line.split(",")) for line in table.splitlines())
    return tuple(
        Accelerator("cuda", int(row[0]), row[1], int(row[2]) << 20, row[3], row[4])
        for row in rows
        if len(row) == len(QUERY) and row[0].isdigit() and row[2].isdigit()
    )


def has_compiler(python: Path | None = None) -> bool:
    """Return whether torch.compile can build C++ here: it needs a compiler and Python's headers."""
    return compiler() is not None and (python_include(python) / "Python.h").exists()


def compiler() -> str | None:
    """The C++ compiler torch's inductor would take: $CXX, else g++, else clang++."""
    return next(
        (path for name in (os.environ.get("CXX"), "g++", "clang++") if name and (path := shutil.which(name))), None
    )


@lru_cache(maxsize=8)
def python_include(python: Path | None = None) -> Path:
    """Folder of an interpreter's C headers; a folder that does not exist where the interpreter does not run."""
    question = "import sysconfig; print(sysconfig.get_paths()['include'])"
    return Path(run_tool(str(python or sys.executable), "-I", "-S", "-c", question).strip() or "/nonexistent")
