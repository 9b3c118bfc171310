"""The node's end: an actor that starts one worker, hands out its channel's files, and ends the worker when it ends
itself.

Standard library only: Ray carries this class by value to a node, where the worker is the checkout's own. What the
worker writes is in a folder of the node, `$WHETSTONE_HOME/spool/KEY/JOB/ATTEMPT`; names are relative to it. Between
keeper and worker runs `backend/serving/server_keeper.py`, which ends the worker and all that it started when this
process is gone, however it ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

CHILD = "backend/serving/server_keeper.py"
FROZEN = ".frozen"
"""Links to the resume files as they were at one moment."""
MAPPED = "mapped-"
"""Prefix of files that are changed in place, so that they are never of one moment."""
TRIES = 20
"""Tries to find a moment at which no file is being put in place."""
SOON_S = 0.2
LOCK_FILE = ".held"
"""Locked while a keeper has the folder; a folder whose lock is free is left over."""
FRESH_S = 60.0
"""A folder that is as new as this may be one whose keeper has not locked it yet."""
GRACE_S = 30.0
"""From SIGTERM to SIGKILL if nobody forces it sooner."""
SIGNALLED = 128
"""Exit codes of server_keeper.py above it name the signal that ended the worker."""
OURS = ("RAY_", "WHETSTONE_HOME", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS")
"""Prefixes of variables that Ray or its environment's interpreter set, or that the worker gets anew."""


class Keeper:
    """Starts and guards one worker. After `alone_s` seconds without a request nobody needs the worker any more."""

    def __init__(self, key: str, job: str, attempt: int, alone_s: float) -> None:
        self._home = Path(os.environ.get("WHETSTONE_HOME") or "~/.whetstone").expanduser().resolve()
        self._folder = self._home / "spool" / key / job / str(attempt)
        _sweep(self._home / "spool")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held: BinaryIO = (self._folder / LOCK_FILE).open("ab")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._child: subprocess.Popen[bytes] | None = None
        self._contacted_s, self._alone_s = time.monotonic(), alone_s
        self._frozen: dict[str, Any] | None = None
        self._hashed: dict[tuple[str, int, int], str] = {}
        self._freezing: threading.Thread | None = None
        threading.Thread(target=self._guard, daemon=True, name="alone").start()

    def where(self) -> dict[str, str]:
        """Return the node where Ray runs this: `host` and `address`."""
        import ray

        return {"host": socket.gethostname(), "address": ray.util.get_node_ip_address()}

    def lacks(self, checkout: str, python: str, sources: str, stamps: dict[str, str]) -> dict[str, Any]:
        """Return what this node lacks.

        `refusal`: a sentence that says why it cannot run the job, or None. Of the folders and files in `stamps` (path
        -> `stamp`): `missing` ones, and `other` ones, which differ from the studio's, perhaps only in their time.
        `sources`: digest of the studio's own sources.
        """
        # 1. The node must have the studio's own sources and environment.
        refusal = None
        if not Path(python).exists() or not Path(checkout, "backend", "worker").is_dir():
            refusal = (
                f"has no Whetstone at {checkout} with its environment {python}: "
                "set it up there as on the studio's machine"
            )
        elif digest(Path(checkout)) != sources:
            refusal = f"has another version of Whetstone at {checkout}: bring it to that of the studio"
        # 2. Compare the files that the job reads.
        here = {path: stamp(Path(path)) for path in stamps}
        other = [path for path, existing in here.items() if existing and existing != stamps[path]]
        return {
            "refusal": refusal,
            "missing": [path for path, existing in here.items() if not existing],
            "other": other,
        }

    def same(self, described: dict[str, tuple[str, int]]) -> bool:
        """Return whether these files (path -> sha256, time of change in ns) are here with that content, and give them
        that time."""
        if any(not Path(path).is_file() or sha256(Path(path)) != sha for path, (sha, _) in described.items()):
            return False
        for path, (_, changed) in described.items():
            os.utime(path, ns=(changed, changed))
        return True

    def write(self, name: str, offset: int, content: bytes, mtime_ns: int | None) -> None:
        """Write the bytes there. With a time of change they were the file's last, and the file gets its name.

        An absolute name is a file of this machine, such as a model's.
        """
        self._contacted_s, path = time.monotonic(), self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(content)
        if mtime_ns is not None:
            os.utime(part, ns=(mtime_ns, mtime_ns))
            part.replace(path)

    def begin(
        self, checkout: str, python: str, mark: str, variables: dict[str, str], folders: list[str], *, whole: bool
    ) -> None:
        """Start the worker, once. `variables`: what it gets besides the node's own; `folders`: those of its channel to
        make; `whole`: it has all of the node."""
        if self._child is not None:
            return
        for name in folders:
            (self._folder / name).mkdir(exist_ok=True)

        # 1. Make its environment.
        hidden = ("CUDA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES") if whole else ()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, *hidden))}
        threads = os.environ.get("OMP_NUM_THREADS")
        own = {"OMP_NUM_THREADS": threads} if threads and not whole else {}
        environment = {
            **inherited,
            **own,
            **variables,
            "WHETSTONE_JOB": mark,
            "WHETSTONE_HOME": str(self._home),
            "PYTHONPATH": checkout,
            "PYTHONUNBUFFERED": "1",
        }

        # 2. Start it under its own keeper.
        child = [
            python,
            str(Path(checkout, "backend/serving/server_keeper.py")),
            str(os.getpid()),
            str(GRACE_S),
            str(self._folder / ".scratch"),
        ]
        with (self._folder / "log.txt").open("ab") as log:
            self._child = subprocess.Popen(
                [*child, python, "-m", "backend.worker", str(self._folder)],
                cwd=checkout,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def inspect(
        self, patterns: list[str], drop: list[str], resume_patterns: list[str], frozen: int | None = None
    ) -> dict[str, Any]:
        """Return whether the worker has begun, its exit code, and the files that match `patterns` (globs of files and
        folders), oldest change first: name, size, time of change in ns. `drop`: files that nobody needs here any more.

        `resume_patterns`: globs of the resume files. They are frozen once for each number that `frozen` names, and
        returned as `frozen`: that `number`, and `files` (name -> [sha256, size]), to be read below FROZEN until another
        number is named; None while they are being hashed.
        """
        self._contacted_s = time.monotonic()
        for name in drop:
            (self._folder / name).unlink(missing_ok=True)
        # A child that a signal ended has the negative number of the signal, as from subprocess.
        code = self._child.poll() if self._child is not None else None
        if code is not None and code > SIGNALLED:
            code = SIGNALLED - code
        files = listing(self._folder, patterns)
        return {
            "begun": self._child is not None,
            "code": code,
            "files": files,
            "frozen": self._freeze(resume_patterns, frozen),
        }

    def _freeze(self, resume_patterns: list[str], number: int | None) -> dict[str, Any] | None:
        if number is None or (self._frozen is not None and self._frozen["number"] == number):
            return self._frozen
        if self._freezing is None or not self._freezing.is_alive():
            self._freezing = threading.Thread(
                target=self._frozen_as, args=(resume_patterns, number), daemon=True, name="freeze"
            )
            self._freezing.start()
        self._freezing.join(SOON_S)
        return self._frozen if self._frozen is not None and self._frozen["number"] == number else None

    def _frozen_as(self, resume_patterns: list[str], number: int) -> None:
        self._frozen = None
        with suppress(OSError):  # a full disk: it is tried again with the next look
            rows = freeze(self._folder, resume_patterns)
            self._hashed = {row: self._hashed.get(row) or sha256(self._folder / FROZEN / row[0]) for row in rows}
            self._frozen = {"number": number, "files": {row[0]: (sha, row[1]) for row, sha in self._hashed.items()}}

    def read(self, name: str, offset: int, most: int) -> bytes:
        """Return bytes of the file. Raises FileNotFoundError."""
        self._contacted_s = time.monotonic()
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(most)

    def ask(self, *, force: bool) -> None:
        """Ask the worker to stop, or with `force` end it at once."""
        if self._child is None or self._child.poll() is not None:
            return
        if not force:
            self._child.send_signal(signal.SIGTERM)
            return
        with suppress(OSError):  # it may have gone just now
            for pid in Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        """End whatever is left and remove the folder; the caller ends the actor itself."""
        self.ask(force=True)
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(10.0)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._held.close()
        with suppress(OSError):
            self._folder.parent.rmdir()

    def _guard(self) -> None:
        while time.monotonic() - self._contacted_s < self._alone_s:
            time.sleep(min(1.0, self._alone_s / 4))
        self.close()
        os._exit(1)


def listing(folder: Path, patterns: list[str]) -> list[tuple[str, int, int]]:
    """List files as `Keeper.inspect` returns them. Files that are being written (their names begin with a dot) are left
    out."""
    rows = []
    for pattern in patterns:
        for top in folder.glob(pattern):
            for path in [top] if top.is_file() else top.rglob("*"):
                with suppress(FileNotFoundError):
                    if path.is_file() and not path.name.startswith("."):
                        status = path.stat()
                        rows.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return sorted(rows, key=lambda row: row[2])


def freeze(folder: Path, patterns: list[str]) -> list[tuple[str, int, int]]:
    """Link the files that match into FROZEN, all as they are at one moment. Return them as `listing` does.

    A worker can be killed at any moment and continued, so the files of one moment are enough; files of several moments
    are not. Raises OSError, also if there was no such moment in all tries.
    """
    frozen = folder / FROZEN
    for _ in range(TRIES):
        shutil.rmtree(frozen, ignore_errors=True)
        rows = [row for row in listing(folder, patterns) if not Path(row[0]).name.startswith(MAPPED)]
        with suppress(FileNotFoundError):
            for name, _, _ in rows:
                (frozen / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(folder / name, frozen / name)
            if [row for row in listing(folder, patterns) if not Path(row[0]).name.startswith(MAPPED)] == rows:
                return rows
        time.sleep(SOON_S / TRIES)
    raise OSError("what the worker keeps changes all the time")


def digest(checkout: Path) -> str:
    """Return the digest of the source files that a worker runs."""
    sources = hashlib.sha256()
    for path in sorted(checkout.joinpath("backend").rglob("*.py")):
        sources.update(f"{path.relative_to(checkout)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return sources.hexdigest()


def stamp(path: Path) -> str:
    """Return a stamp of a file, or of a folder's files, that changes when they do, without reading them; empty if there
    is nothing."""
    try:
        entries = [
            (str(file.relative_to(path)), status.st_size, status.st_mtime_ns)
            for file in inside(path)
            if (status := file.stat())
        ]
    except OSError:
        return ""
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:16] if entries else ""


def inside(path: Path) -> list[Path]:
    """Return the files of a folder, however deep, or the file itself."""
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(spool: Path) -> None:
    """Remove the folders of keepers that were killed."""
    for lock_file in spool.glob(f"*/*/*/{LOCK_FILE}"):
        with suppress(OSError), lock_file.open("rb") as file:
            if time.time() - lock_file.stat().st_mtime > FRESH_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
