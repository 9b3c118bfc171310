"""Questions about processes that may end at any moment: one that has ended between two lines is no error of the test.

psutil and the os module raise where a process is gone. A test that asks about the processes of a worker, of a server
or of its own children asks here.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import psutil

from backend import processes

Answer = TypeVar("Answer")


def has_ended(process: psutil.Process) -> bool:
    """Also true where nobody has waited for it yet. It is not waited for here: that is up to its parent."""
    return not answer(lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, False)


def command(process: psutil.Process) -> list[str]:
    """The words of its command line; empty once it has ended."""
    return answer(process.cmdline, [])


def name(process: psutil.Process) -> str:
    """Its program's name; empty once it has ended."""
    return "" if has_ended(process) else answer(process.name, "")


def working_folder(process: psutil.Process) -> Path | None:
    """The folder that it works in, and None once it has ended."""
    return answer(lambda: Path(process.cwd()), None)


def connections(process: psutil.Process) -> list[psutil.pconn]:
    """Its connections and the ports that it listens on, of TCP; empty once it has ended."""
    return answer(lambda: process.net_connections("tcp"), [])


def children(pid: int | None = None) -> list[psutil.Process]:
    """All descendants of that process, or of this one; without itself, and empty once it has ended."""
    return processes.list_tree(psutil.Process().pid if pid is None else pid)[1:]


def kill(those: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each that still runs."""
    processes.send_signal(those, signal.SIGKILL)


def answer(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return what is asked of a process, or `otherwise` where the process has ended by then."""
    try:
        return ask()
    except (*processes.PROCESS_ENDED, ProcessLookupError, FileNotFoundError):
        return otherwise
