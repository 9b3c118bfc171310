"""A person's terms for a job besides what it does: priority, time limits, retries, cores and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from backend.domain.errors import InvalidOptions
from backend.domain.frozen import Frozen

WORKING_DAY_S = 8 * 3600.0


class Priority(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def head_start_s(self) -> float:
        """A job counts as submitted so much earlier: so none is ever overtaken for longer than a working day or two."""
        return {Priority.HIGH: WORKING_DAY_S, Priority.NORMAL: 0.0, Priority.LOW: -WORKING_DAY_S}[self]


class Terms(Frozen):
    """Seconds and bytes; None if nothing was requested."""

    priority: Priority = Priority.NORMAL
    retries: int | None = Field(None, ge=0, le=20)
    """Automatic retries after a failure that is not the job's own fault; None as `domain.jobs.endings` says."""
    queue_timeout_s: float | None = Field(None, gt=0)
    """From when it may start, its dependency done, to its start."""
    start_timeout_s: float | None = Field(None, gt=0)
    """From its start to the worker's first word."""
    run_timeout_s: float | None = Field(None, gt=0)
    """The longest that one attempt may run."""
    cores: int | None = Field(None, ge=1)
    memory_bytes: int | None = Field(None, ge=1)

    @property
    def text(self) -> str:
        return self.model_dump_json(exclude_defaults=True)


def queue_rank(submitted_s: float, priority: Priority) -> float:
    """Return a job's place in the queue, the lowest first, from when it was submitted (seconds of a clock)."""
    return submitted_s - priority.head_start_s


SPANS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZES = {"mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_seconds(written: str, field: str) -> float:
    """Parse `90`, `90s`, `30m`, `2h` or `1d`, in seconds. Raises InvalidOptions."""
    return _parse_quantity(written, field, SPANS, "time such as 90s, 30m or 2h")


def parse_size(written: str, field: str) -> int:
    """Parse `8GB` or `8GiB`, in bytes. Raises InvalidOptions."""
    return int(_parse_quantity(written, field, SIZES, "size such as 8GB or 16GiB"))


def _parse_quantity(written: str, field: str, units: Mapping[str, float], expected: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]*)", written.strip().lower())
    if match is None or match[2] not in units or not float(match[1]):
        raise InvalidOptions(f"is wrong: `{written[:40]}` is no {expected}.", field=field)
    return float(match[1]) * units[match[2]]
