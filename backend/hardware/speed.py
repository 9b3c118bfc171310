"""How fast this machine's processor reads memory and multiplies: measured a few times, a second each, and kept in a file.

An attempt is the best of several runs, since what else runs here only ever takes away. Knows nothing of models.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from backend.hardware import probe

READ_BYTES = 256 << 20
"""Well beyond any cache, so that memory is what is measured."""
ROWS, WIDTH = 256, 4096
"""One matrix product: ROWS tokens through WIDTH x WIDTH weights in bfloat16."""
RUNS = 9
ATTEMPTS = 3
FILE = "processor-speed.json"


class Speed(NamedTuple):
    """`bandwidth` in bytes/s read, `flops` in 16-bit operations/s, all cores together."""

    bandwidth: float
    flops: float


class Attempt(NamedTuple):
    """One measurement; `at` is ISO 8601 in UTC, empty where an earlier version did not write it."""

    speed: Speed
    at: str


class Measured(NamedTuple):
    """The median of `attempts` measurements, the last of them `at`."""

    speed: Speed
    at: str
    attempts: int


def processor(cache: Path) -> Speed:
    """The median of what was measured of this processor. The first ATTEMPTS calls measure, since one may fall into a busy moment;
    after that the kept figures are the answer."""
    attempts = _kept(cache / FILE, _key())
    if len(attempts) < ATTEMPTS:
        attempts = [*attempts, _attempt()]
        _keep(cache / FILE, attempts)
    return _summary(attempts).speed


def known(cache: Path) -> Measured | None:
    """What was measured of this processor so far; None where nothing was. Measures nothing."""
    attempts = _kept(cache / FILE, _key())
    return _summary(attempts) if attempts else None


def again(cache: Path) -> Measured:
    """Measure ATTEMPTS times in place of what was kept. Takes about six seconds."""
    attempts = [_attempt() for _ in range(ATTEMPTS)]
    _keep(cache / FILE, attempts)
    return _summary(attempts)


def _attempt() -> Attempt:
    return Attempt(measure(probe.cores()), datetime.now(UTC).isoformat(timespec="seconds"))


def _key() -> str:
    """Figures hold for this processor and this many cores."""
    facts = probe.probe()
    return f"{facts['cpu']}, {facts['cores']} cores"


def _summary(attempts: Sequence[Attempt]) -> Measured:
    return Measured(median([attempt.speed for attempt in attempts]), attempts[-1].at, len(attempts))


def median(attempts: Sequence[Speed]) -> Speed:
    return Speed(*map(statistics.median, zip(*attempts, strict=True)))


def measure(threads: int) -> Speed:
    """Measure with that many threads. Takes about two seconds."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        data = torch.ones(READ_BYTES // 4, dtype=torch.float32)
        reading = min(_best(lambda: data.sum()), _best(lambda: data.max()), _best(lambda: torch.dot(data, data)))
        tokens, weights = torch.ones(ROWS, WIDTH, dtype=torch.bfloat16), torch.ones(WIDTH, WIDTH, dtype=torch.bfloat16)
        multiplying = _best(lambda: torch.nn.functional.linear(tokens, weights))
    finally:
        torch.set_num_threads(before)
    return Speed(READ_BYTES / reading, 2 * ROWS * WIDTH * WIDTH / multiplying)


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of RUNS after one that warms up."""
    work()
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _kept(path: Path, key: str) -> list[Attempt]:
    """What was measured so far; nothing for a file of another processor, or a damaged one."""
    try:
        document = json.loads(path.read_text())
        if document["processor"] == key:
            return [_read(row) for row in document["attempts"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return []


def _read(row: dict[str, Any]) -> Attempt:
    return Attempt(Speed(float(row["bandwidth"]), float(row["flops"])), str(row.get("at", "")))


def _keep(path: Path, attempts: Sequence[Attempt]) -> None:
    """Written aside, then renamed: two processes that measure at once leave one whole file. A full disk costs only the memory."""
    rows = [attempt.speed._asdict() | {"at": attempt.at} for attempt in attempts]
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        aside.write_text(json.dumps({"processor": _key(), "attempts": rows}))
        aside.replace(path)
