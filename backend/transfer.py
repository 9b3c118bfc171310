"""Downloads files of a model or artifact into a folder: several at once, resumed where they stopped, checked as they
arrive.

A file has its own name only once it is whole and has the checksum its source states; until then it is NAME.part.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from backend.domain.errors import DownloadFailed, WhetstoneError, WorkError

T = TypeVar("T")
CHUNK_BYTES = 1 << 20
STREAMS = 4
TELL_SECONDS = 0.2
SETTLE_SECONDS = 2.0
"""Seconds allowed for writing the bytes that arrive right now; a stalled connection is not waited for."""
PART = ".part"
PATIENCE_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses before each further try while nothing arrives at all; any byte starts them anew."""


class SourceDropped(WorkError):
    """The connection to the source broke; resume the job to carry on where it stopped."""


class Digest(NamedTuple):
    """A checksum as its source states it: `sha256`, `md5`, or `git` (sha1 over git's blob header and the bytes), in
    hex."""

    kind: str
    value: str


class Source(Protocol):
    """A source of files; `name` is how messages call it."""

    name: str

    def digest(self, file: str) -> Digest | None:
        """The file's checksum where the source states one. Raises SourceDropped."""

    def stream(self, file: str, start: int) -> Iterator[bytes]:
        """The bytes from `start` to the end. Raises SourceDropped where it may be tried again, else another
        WhetstoneError."""


def present(folder: Path, files: Mapping[str, int]) -> int:
    """Return the bytes of these files that an earlier attempt left in the folder."""
    present_bytes = 0
    for name, size in files.items():
        for path in (folder / name, folder / f"{name}{PART}"):
            if path.is_file():
                present_bytes += min(size, path.stat().st_size)
                break
    return present_bytes


def download(
    source: Source,
    files: Mapping[str, int],
    folder: Path,
    on_progress: Callable[[int], None],
    *,
    patience_s: tuple[float, ...] = PATIENCE_S,
    tell: Callable[[str], None] | None = None,
    retry: str = "resume the job",
) -> None:
    """Fetch what of `files` (bytes by name) is not there yet; `on_progress` is told the bytes fetched now, a few times
    a second, `tell` each dropped connection (None: it is printed). `retry` is what messages advise.

    Raises what the source raises, DownloadFailed where it gives up or a checksum is wrong, OSError (a full disk).
    Whatever is raised in the calling thread meanwhile ends the download; what was fetched stays for the next attempt.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _Download(source, files, folder, patience_s, tell or _print, retry).run(on_progress)


def _print(line: str) -> None:
    print(line, flush=True)


class _Download:
    """Daemon threads take files from a queue, the largest first: a server that stalls cannot hold back the end of the
    process."""

    def __init__(
        self,
        source: Source,
        files: Mapping[str, int],
        folder: Path,
        patience_s: tuple[float, ...],
        tell: Callable[[str], None],
        retry: str,
    ) -> None:
        self.source, self.files, self.folder, self.patience_s = source, files, folder, patience_s
        self.tell, self.retry = tell, retry
        self.fetched = 0
        self.errors: list[Exception] = []
        self.done: set[str] = set()
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._busy = min(STREAMS, len(files))
        self._ended = threading.Event()
        for name in sorted(files, key=lambda name: (-files[name], name)):
            self._waiting.put(name)

    def run(self, on_progress: Callable[[int], None]) -> None:
        try:
            if not self._busy:
                self._ended.set()
            for _ in range(self._busy):
                threading.Thread(target=self._work, daemon=True).start()
            while not self._ended.wait(TELL_SECONDS):
                on_progress(self.fetched)
        finally:
            self.stop.set()
            self._ended.wait(SETTLE_SECONDS)
        if self.errors:
            raise self.errors[0]
        if self.done != set(self.files):
            raise DownloadFailed(f"The download stopped for a reason nobody foresaw: see the log, then {self.retry}.")
        on_progress(self.fetched)

    def _work(self) -> None:
        try:
            while not self.stop.is_set():
                name = self._waiting.get_nowait()
                if _File(self, name).fetch():
                    self.done.add(name)
        except queue.Empty:
            pass
        except (WhetstoneError, OSError) as error:
            self.errors.append(error)
            self.stop.set()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._busy -= 1
            if self._busy == 0 or self.errors:
                self._ended.set()

    def count(self, arrived: int) -> None:
        with self._lock:
            self.fetched += arrived


class _File:
    """The download of one file."""

    def __init__(self, whole: _Download, name: str) -> None:
        self.whole, self.name, self.size = whole, name, whole.files[name]
        self.final, self.part = whole.folder / name, whole.folder / f"{name}{PART}"
        self.here = 0
        self.part.parent.mkdir(parents=True, exist_ok=True)

    def fetch(self) -> bool:
        """Fetch the file; return False if stopped before the end."""
        if self.final.is_file() and self.final.stat().st_size == self.size:
            return True
        # 1. Hash what an earlier attempt left, and receive the rest behind it.
        stated = self._stated()
        hasher = _hasher(stated, self.size)
        with self.part.open("ab") as sink:
            self.here = self._stored(sink, hasher)
            self._receive_all(sink, hasher)
        # 2. Compare the checksum, and move the file to its place.
        if self.here < self.size:
            return False
        if stated is not None and hasher.hexdigest() != stated.value:
            self.part.unlink()
            raise DownloadFailed(
                f"{self.name} arrived with another checksum than {self.whole.source.name} states: {self.whole.retry}."
            )
        self.part.replace(self.final)
        return True

    def _stated(self) -> Digest | None:
        return self._patiently(lambda: self.whole.source.digest(self.name))

    def _stored(self, sink: Any, hasher: Any) -> int:
        """Hash the bytes that an earlier attempt left and return their number; if too many, begin anew."""
        if sink.tell() > self.size:
            sink.truncate(0)
        with self.part.open("rb") as stored:
            while chunk := stored.read(CHUNK_BYTES):
                hasher.update(chunk)
        return self.part.stat().st_size

    def _receive_all(self, sink: Any, hasher: Any) -> None:
        while self.here < self.size and not self.whole.stop.is_set():
            self._patiently(lambda: self._receive(sink, hasher))

    def _receive(self, sink: Any, hasher: Any) -> None:
        """Receive over one connection until it ends."""
        before = self.here
        for chunk in self.whole.source.stream(self.name, self.here):
            if self.whole.stop.is_set():
                return
            if self.here + len(chunk) > self.size:
                raise DownloadFailed(
                    f"{self.name} is longer than {self.whole.source.name} says: import the model again."
                )
            sink.write(chunk)
            hasher.update(chunk)
            self.here += len(chunk)
            self.whole.count(len(chunk))
        if self.here == before:
            raise SourceDropped(
                f"{self.name} ends after {self.here} of {self.size} bytes: its owner may have to upload it again."
            )

    def _patiently(self, act: Callable[[], T]) -> T | None:
        """Try again after a dropped connection, with longer and longer pauses; bytes that arrived start them anew."""
        # A connection that brings bytes is worth trying again at once.
        pauses = iter(self.whole.patience_s)
        while True:
            before = self.here
            try:
                return act()
            except SourceDropped as error:
                if self.here > before:
                    pauses = iter(self.whole.patience_s)
                pause = next(pauses, None)
                if pause is None:
                    raise DownloadFailed(f"{error} What was fetched is kept: {self.whole.retry} to carry on.") from None
                self.whole.tell(f"{self.name} at {self.here} of {self.size} bytes: {error}")
                if self.whole.stop.wait(pause):
                    return None


def _hasher(stated: Digest | None, size: int) -> Any:
    kind = stated.kind if stated is not None else "sha256"
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.new(kind, usedforsecurity=False)
