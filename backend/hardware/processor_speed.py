"""Measures how fast this machine's processor reads memory, streams weights and multiplies: the best of many
repetitions, cached in a file.

The best is taken as in STREAM (McCalpin 1995; stream.c: arrays of four times the last-level cache, the best of NTIMES):
other work, a thread that wakes a tick late, or pages not yet mapped only ever take away. The repetitions of each kernel
are apart, since a busy moment lasts longer than one of them. Nothing here concerns models.
"""

from __future__ import annotations

import json
import os
import timeit
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from backend import files
from backend.domain.errors import WorkError
from backend.hardware import probe

LEAST_BYTES, MOST_BYTES = 256 << 20, 1 << 30
"""Limits of an array's size; between them it takes four times the last-level caches."""
MEMORY_SHARE = 16
"""An array takes at most this part of the machine's memory."""
ROWS, WIDTH = 256, 4096
"""One matrix product: ROWS tokens through WIDTH x WIDTH weights in bfloat16."""
ROUNDS, RUNS = 4, 4
ATTEMPTS, MOST_ATTEMPTS = 3, 9
"""Quiet ones that are enough, and all together."""
BUSY_SHARE = 0.5
"""Share of the cores: a load average above it when an attempt begins makes the attempt a busy one."""
FILE = "processor-speed.json"
METHOD = "best of rounds, packed weights"
CACHES = Path("/sys/devices/system/cpu")


class Speed(NamedTuple):
    """All cores together. `bandwidth`: bytes/s read. `weights`: bytes/s at which a matrix-vector product goes through
    bfloat16 weights, which is what decoding does. `flops`: 16-bit operations/s."""

    bandwidth: float
    weights: float
    flops: float


class SpeedAttempt(NamedTuple):
    """A measurement; `at` is ISO 8601 in UTC. `busy`: other work used a good part of the processor meanwhile."""

    speed: Speed
    at: str
    busy: bool = False


class MeasuredSpeed(NamedTuple):
    """The best of `attempts` measurements, the last of them `at`."""

    speed: Speed
    at: str
    attempts: int


def processor_speed(cache: Path) -> Speed:
    """Return the best measurement of this processor.

    Calls measure until ATTEMPTS were made in quiet moments, or MOST_ATTEMPTS in all; after that the cached figures are
    returned.
    """
    attempts = _read_attempts(cache / FILE, _key())
    if sum(not attempt.busy for attempt in attempts) < ATTEMPTS and len(attempts) < MOST_ATTEMPTS:
        attempts = [*attempts, _attempt()]
        _write_attempts(cache / FILE, attempts)
    return _summary(attempts).speed


def find_measured(cache: Path) -> MeasuredSpeed | None:
    """Return what was measured of this processor so far; None if nothing was. Measures nothing."""
    attempts = _read_attempts(cache / FILE, _key())
    return _summary(attempts) if attempts else None


def measure_again(cache: Path) -> MeasuredSpeed:
    """Measure ATTEMPTS times in place of the cached figures. Takes about six seconds."""
    attempts = [_attempt() for _ in range(ATTEMPTS)]
    _write_attempts(cache / FILE, attempts)
    return _summary(attempts)


def _attempt() -> SpeedAttempt:
    busy = os.getloadavg()[0] > BUSY_SHARE * probe.cores()
    return SpeedAttempt(measure(probe.cores()), datetime.now(UTC).isoformat(timespec="seconds"), busy)


def _key() -> str:
    """Return the key of cached figures: this processor, this many cores and this way of measuring."""
    facts = probe.probe()
    return f"{facts['cpu']}, {facts['cores']} cores, {METHOD}"


def _summary(attempts: Sequence[SpeedAttempt]) -> MeasuredSpeed:
    return MeasuredSpeed(best_speed([attempt.speed for attempt in attempts]), attempts[-1].at, len(attempts))


def best_speed(attempts: Sequence[Speed]) -> Speed:
    """Return the highest of each figure."""
    return Speed(*map(max, zip(*attempts, strict=True)))


def measure(threads: int) -> Speed:
    """Measure with that many threads. Takes about two seconds."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        size = array_bytes()
        data, rows = torch.ones(size // 4, dtype=torch.float32), size // 2 // WIDTH
        # Sums and dot products read memory only; the wide product computes.
        kernels = (
            lambda: data.sum(),
            lambda: torch.dot(data, data),
            _linear(torch.ones(rows, WIDTH, dtype=torch.bfloat16), 1),
            _linear(torch.ones(WIDTH, WIDTH, dtype=torch.bfloat16), ROWS),
        )
        summed, dotted, streamed, multiplied = time_fastest(kernels)
    finally:
        torch.set_num_threads(before)
    return Speed(size / min(summed, dotted), rows * WIDTH * 2 / streamed, 2 * ROWS * WIDTH * WIDTH / multiplied)


def array_bytes(caches: Path = CACHES) -> int:
    """Return four times the size of all last-level caches together, within the limits above."""
    last: dict[str, int] = {}
    for index in caches.glob("cpu[0-9]*/cache/index3"):
        with suppress(OSError, ValueError):
            last[(index / "shared_cpu_list").read_text()] = (
                int((index / "size").read_text().strip().removesuffix("K")) << 10
            )
    most = min(MOST_BYTES, probe.total_memory() // MEMORY_SHARE)
    return max(min(LEAST_BYTES, most), min(4 * sum(last.values()), most))


def time_fastest(kernels: Sequence[Callable[[], object]]) -> list[float]:
    """Return the seconds of each kernel's fastest run. They take turns, so that the repetitions of one are apart."""
    for kernel in kernels:
        kernel()
    rounds = [[min(timeit.repeat(kernel, number=1, repeat=RUNS)) for kernel in kernels] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _linear(weights: Any, tokens: int) -> Callable[[], object]:
    """Return a kernel: that many tokens through the weights, packed once for oneDNN as vLLM does it on a processor
    (layers/utils.py, create_onednn_mm), if this build of torch can."""
    import torch

    inputs = torch.ones(tokens, weights.shape[1], dtype=weights.dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weights, tokens)
        through = torch.ops.mkldnn._linear_pointwise
        through(inputs, packed, None, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError):
        return lambda: torch.nn.functional.linear(inputs, weights)
    return lambda: through(inputs, packed, None, "none", [], "")


def _read_attempts(path: Path, key: str) -> list[SpeedAttempt]:
    """Return what was measured so far; nothing if the file is of another processor or method, or damaged."""
    try:
        document = json.loads(path.read_text())
        if document["processor"] == key:
            return [_read(row) for row in document["attempts"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return []


def _read(row: dict[str, Any]) -> SpeedAttempt:
    return SpeedAttempt(Speed(*(float(row[name]) for name in Speed._fields)), str(row["at"]), bool(row["busy"]))


def _write_attempts(path: Path, attempts: Sequence[SpeedAttempt]) -> None:
    """Write the measurements. On a full disk they are only not cached."""
    rows = [attempt.speed._asdict() | {"at": attempt.at, "busy": attempt.busy} for attempt in attempts]
    with suppress(OSError, WorkError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps({"processor": _key(), "attempts": rows}), flush=False)
