"""Seeded faults over what lives at SageMaker: jobs (`job_life`) and endpoints (`endpoint_life`), at one account in one
process.

A life's checker looks at the account, and at what we recorded, when all is over, and knows nothing of what was
injected.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import pytest

from tests.fakes import faulty
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.pointed import point
from tests.fakes.sagemaker.server import serving

ANSWERS: dict[str, str | int] = {
    "throttled": "ThrottlingException",
    "500": 500,
    "503": 503,
    "broken off": "cut",
    "answer lost": "lost",
    "request lost": "drop",
    "credentials expired": "ExpiredTokenException",
}


STORAGE: dict[str, str | int] = {
    "S3 500": 500,
    "S3 503": 503,
    "S3 broken off": "cut",
    "S3 answer lost": "lost",
    "S3 request lost": "drop",
}
"""Of S3: lists, parts, checksums, removals, and results that come back."""
MOST_IN_A_ROW = 12
"""More than a client tries by itself."""


@dataclass
class Tally:
    """Of one kind of fault."""

    seeds: int = 0
    injected: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    unnoticed: int = 0


class Storage(faulty.Faults):
    """What happens to each request for S3: as many in a row as a seed says, so long as it has any left."""

    def __init__(self) -> None:
        super().__init__()
        self.do: str | int | None = None
        self.random, self.left, self.burst, self.injected = random.Random(0), 0, 0, 0

    def begin(self, kind: str, chance: random.Random) -> None:
        self.do, self.random, self.left, self.burst, self.injected = (
            STORAGE.get(kind),
            chance,
            chance.randint(1, 4),
            0,
            0,
        )

    def next_fault(self, method: str, path: str, size: int) -> str | int | None:
        with self.lock:
            if self.do is None:
                return None
            if self.burst == 0 and self.left and self.random.random() < 0.25:
                self.left, self.burst = self.left - 1, self.random.randint(1, MOST_IN_A_ROW)
            if self.burst == 0:
                return None
            self.burst, self.injected = self.burst - 1, self.injected + 1
            return self.do


@contextmanager
def shaky(s3: str) -> Iterator[tuple[str, Storage]]:
    """The address of a proxy before S3, in this process, and what it does."""
    storage = Storage()
    handler = type("Shaky", (faulty.Handler,), {"target": urlsplit(s3).netloc, "faults": storage})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", storage
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Life(Protocol):
    """Of what one seed is about, with one kind of fault."""

    kind: str

    def run(self) -> None: ...

    def check(self, tally: Tally) -> str | None:
        """Adds to the tally; what is wrong, in words."""

    def leave(self) -> None: ...


Lives = Callable[[Account, Path], AbstractContextManager[Callable[[int], Life]]]


def campaign(folder: Path, seeds: range, lives: Lives, kinds: Sequence[str]) -> tuple[dict[str, Tally], list[str]]:
    """The tallies by kind of fault, and what is wrong."""
    tallies, wrong = {kind: Tally() for kind in kinds}, []
    account = Account()
    with pytest.MonkeyPatch.context() as patch, serving(account) as url:
        point(patch, folder, url)
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
        with lives(account, folder) as born:
            for seed in seeds:
                life = born(seed)
                life.run()
                wrong += filter(None, [life.check(tallies[life.kind])])
                life.leave()
    return tallies, wrong


def table(tallies: dict[str, Tally]) -> str:
    """As it is printed."""
    rows = [("fault", "seeds", "injected", "ended as", "lost", "doubled", "unnoticed")]
    for kind, each in tallies.items():
        ended = ", ".join(f"{number} {state}" for state, number in sorted(each.ended.items()))
        rows.append((kind, *map(str, (each.seeds, each.injected, ended, each.lost, each.doubled, each.unnoticed))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
