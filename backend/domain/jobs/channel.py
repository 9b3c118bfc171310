"""The form of a job channel: names and encoding only. The same form is a folder locally and a prefix on S3.

Events are numbered segments, each one JSON line an event and each put once; the result is a single object put once.
"""

from __future__ import annotations

from collections.abc import Iterable

from backend.domain.jobs.jobs import Event

SPEC = "spec.json"
RESULT = "result.json"
LOG = "log.txt"
EVENTS = "events"
WORK = "work"
OUTPUT = "output"
"""Inside WORK: what the job publishes; nothing of it counts until the supervisor has verified and moved it."""
RESUME = "resume"
"""Beside WORK, which every attempt begins anew: finished layers, for the next attempt."""


def segment_name(number: int) -> str:
    return f"{number:08d}.jsonl"


def segment_number(name: str) -> int | None:
    stem, _, ending = name.partition(".")
    return int(stem) if ending == "jsonl" and stem.isdigit() else None


def encode(events: Iterable[Event]) -> bytes:
    return "".join(event.model_dump_json(exclude_defaults=False) + "\n" for event in events).encode()


def decode(segment: bytes) -> list[Event]:
    return [Event.model_validate_json(line) for line in segment.splitlines() if line.strip()]
