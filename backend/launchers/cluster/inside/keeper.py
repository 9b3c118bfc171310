"""The node's end: an actor that starts one worker, hands out its channel's files, and takes it with it when it ends.

Standard library only: Ray carries this class by value to a node, where the worker is the checkout's own. What the
worker writes lies in a folder of the node, `$WHETSTONE_HOME/spool/KEY/JOB/ATTEMPT`; names are relative to it. Between
keeper and worker stands `backend/serving/server_keeper.py`, which ends the worker and all that it started when this process is
gone, however that ended.
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
"""Links to what is kept to go on from, as it lay at one moment."""
MAPPED = "mapped-"
"""How the names of files begin that are changed in place, so that they are never of one moment."""
TRIES = 20
"""To find a moment at which nothing is being put in place there."""
SOON_S = 0.2
HELD = ".held"
"""Locked while a keeper has the folder: one that is not is left over."""
FRESH_S = 60.0
"""A folder that is as new as this may be one whose keeper has not locked it yet."""
GRACE_S = 30.0
"""From SIGTERM to SIGKILL where nobody forces it sooner."""
SIGNALLED = 128
"""Exit codes of server_keeper.py above it name the signal that ended the worker."""
OURS = ("RAY_", "WHETSTONE_HOME", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS")
"""How variables begin that Ray or its environment's interpreter set, or that are given anew."""


class Keeper:
    """`alone_s`: without a look for so long nobody wants the worker any more."""

    def __init__(self, key: str, job: str, attempt: int, alone_s: float) -> None:
        self._home = Path(os.environ.get("WHETSTONE_HOME") or "~/.whetstone").expanduser().resolve()
        self._folder = self._home / "spool" / key / job / str(attempt)
        _sweep(self._home / "spool")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held: BinaryIO = (self._folder / HELD).open("ab")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._child: subprocess.Popen[bytes] | None = None
        self._looked, self._alone_s = time.monotonic(), alone_s
        self._frozen: dict[str, Any] | None = None
        self._hashed: dict[tuple[str, int, int], str] = {}
        self._freezing: threading.Thread | None = None
        threading.Thread(target=self._guard, daemon=True, name="alone").start()

    def where(self) -> dict[str, str]:
        """The node: `host` and `address`, where Ray runs this."""
        import ray

        return {"host": socket.gethostname(), "address": ray.util.get_node_ip_address()}

    def lacks(self, checkout: str, python: str, sources: str, stamps: dict[str, str]) -> dict[str, Any]:
        """`refusal`, a sentence that speaks against this node, or None; of the folders and files in `stamps` (path ->
        `stamp`) those that are `missing`, and those that are `other` than the studio's, or only of another time.

        `sources`: digest of the studio's own.
        """
        refusal = None
        if not Path(python).exists() or not Path(checkout, "backend", "worker").is_dir():
            refusal = f"has no Whetstone at {checkout} with its environment {python}: set it up there as on the studio's machine"
        elif digest(Path(checkout)) != sources:
            refusal = f"has another version of Whetstone at {checkout}: bring it to that of the studio"
        here = {path: stamp(Path(path)) for path in stamps}
        other = [path for path, found in here.items() if found and found != stamps[path]]
        return {"refusal": refusal, "missing": [path for path, found in here.items() if not found], "other": other}

    def same(self, described: dict[str, tuple[str, int]]) -> bool:
        """Whether these files (path -> sha256, time of change in ns) are here with that content; they then have that
        time."""
        if any(not Path(path).is_file() or sha256(Path(path)) != found for path, (found, _) in described.items()):
            return False
        for path, (_, changed) in described.items():
            os.utime(path, ns=(changed, changed))
        return True

    def write(self, name: str, offset: int, content: bytes, mtime_ns: int | None) -> None:
        """Put the bytes there; with a time of change it was the last part, and the file comes to its name whole.

        An absolute name is a file of this machine, such as a model's.
        """
        self._looked, path = time.monotonic(), self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(content)
        if mtime_ns is not None:
            os.utime(part, ns=(mtime_ns, mtime_ns))
            part.replace(path)

    def begin(
        self, checkout: str, python: str, mark: str, given: dict[str, str], folders: list[str], *, whole: bool
    ) -> None:
        """Start the worker, once. `given`: variables that it gets beside the node's own; `folders`: of its channel, to
        be there; `whole`: all of the node is its own."""
        if self._child is not None:
            return
        for name in folders:
            (self._folder / name).mkdir(exist_ok=True)
        hidden = ("CUDA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES") if whole else ()
        kept = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, *hidden))}
        threads = os.environ.get("OMP_NUM_THREADS")
        own = {"OMP_NUM_THREADS": threads} if threads and not whole else {}
        environment = {
            **kept,
            **own,
            **given,
            "WHETSTONE_JOB": mark,
            "WHETSTONE_HOME": str(self._home),
            "PYTHONPATH": checkout,
            "PYTHONUNBUFFERED": "1",
        }
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

    def look(self, patterns: list[str], drop: list[str], kept: list[str], frozen: int | None = None) -> dict[str, Any]:
        """Whether the worker is there, and the files that match `patterns` (globs of files and folders), oldest change
        first: name, size, time of change in ns. `drop`: files that nobody needs here any more.

        `kept`: globs of what is to be gone on from. It is frozen once for each number that `frozen` names, and answered
        as `frozen`: that `number`, and `files` (name -> [sha256, size]), to be read below FROZEN until another number
        is named; None while it is being hashed.
        """
        self._looked = time.monotonic()
        for name in drop:
            (self._folder / name).unlink(missing_ok=True)
        code = self._child.poll() if self._child is not None else None
        if code is not None and code > SIGNALLED:
            code = SIGNALLED - code
        files = listing(self._folder, patterns)
        return {"begun": self._child is not None, "code": code, "files": files, "frozen": self._freeze(kept, frozen)}

    def _freeze(self, kept: list[str], number: int | None) -> dict[str, Any] | None:
        if number is None or (self._frozen is not None and self._frozen["number"] == number):
            return self._frozen
        if self._freezing is None or not self._freezing.is_alive():
            self._freezing = threading.Thread(target=self._frozen_as, args=(kept, number), daemon=True, name="freeze")
            self._freezing.start()
        self._freezing.join(SOON_S)
        return self._frozen if self._frozen is not None and self._frozen["number"] == number else None

    def _frozen_as(self, kept: list[str], number: int) -> None:
        self._frozen = None
        with suppress(OSError):  # a full disk: it is tried again with the next look
            rows = freeze(self._folder, kept)
            self._hashed = {row: self._hashed.get(row) or sha256(self._folder / FROZEN / row[0]) for row in rows}
            self._frozen = {"number": number, "files": {row[0]: (found, row[1]) for row, found in self._hashed.items()}}

    def read(self, name: str, offset: int, most: int) -> bytes:
        """Raises FileNotFoundError."""
        self._looked = time.monotonic()
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(most)

    def ask(self, *, force: bool) -> None:
        """Have the worker stop, or with `force` end it at once."""
        if self._child is None or self._child.poll() is not None:
            return
        if not force:
            self._child.send_signal(signal.SIGTERM)
            return
        with suppress(OSError):  # it may have gone just now
            for pid in Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        """End whatever is left and remove the folder; the actor itself is ended by whoever called."""
        self.ask(force=True)
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(10.0)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._held.close()
        with suppress(OSError):
            self._folder.parent.rmdir()

    def _guard(self) -> None:
        while time.monotonic() - self._looked < self._alone_s:
            time.sleep(min(1.0, self._alone_s / 4))
        self.close()
        os._exit(1)


def listing(folder: Path, patterns: list[str]) -> list[tuple[str, int, int]]:
    """As `Keeper.look` answers. Files that are being written (their names begin with a dot) are none yet."""
    found = []
    for pattern in patterns:
        for top in folder.glob(pattern):
            for path in [top] if top.is_file() else top.rglob("*"):
                with suppress(FileNotFoundError):
                    if path.is_file() and not path.name.startswith("."):
                        status = path.stat()
                        found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return sorted(found, key=lambda row: row[2])


def freeze(folder: Path, patterns: list[str]) -> list[tuple[str, int, int]]:
    """Link the files that match into FROZEN, all as they lie at one moment; as `listing` answers.

    A worker can be killed at any moment and gone on from, so what lies there at one is enough; files of several moments
    are not. Raises OSError, also where in so many tries there was no such moment.
    """
    aside = folder / FROZEN
    for _ in range(TRIES):
        shutil.rmtree(aside, ignore_errors=True)
        found = [row for row in listing(folder, patterns) if not Path(row[0]).name.startswith(MAPPED)]
        with suppress(FileNotFoundError):
            for name, _, _ in found:
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(folder / name, aside / name)
            if [row for row in listing(folder, patterns) if not Path(row[0]).name.startswith(MAPPED)] == found:
                return found
        time.sleep(SOON_S / TRIES)
    raise OSError("what the worker keeps changes all the time")


def digest(checkout: Path) -> str:
    """Of the source files that a worker runs."""
    found = hashlib.sha256()
    for path in sorted(checkout.joinpath("backend").rglob("*.py")):
        found.update(f"{path.relative_to(checkout)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def stamp(path: Path) -> str:
    """What tells a file, or a folder's files, from others without reading them; empty where there is nothing."""
    try:
        found = [(str(one.relative_to(path)), at.st_size, at.st_mtime_ns) for one in inside(path) if (at := one.stat())]
    except OSError:
        return ""
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16] if found else ""


def inside(path: Path) -> list[Path]:
    """The files of a folder, however deep, or the file itself."""
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(spool: Path) -> None:
    """Remove what keepers left that were killed."""
    for held in spool.glob(f"*/*/*/{HELD}"):
        with suppress(OSError), held.open("rb") as file:
            if time.time() - held.stat().st_mtime > FRESH_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(held.parent, ignore_errors=True)
