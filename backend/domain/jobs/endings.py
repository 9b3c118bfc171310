"""Why an attempt ended without success, and what follows: tried again after a while, put aside, or left to a person."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Ending(StrEnum):
    FAILED = "failed"
    """By its own error (bad input, a limit that was missed, a bug): the same again would end the same way."""
    CRASHED = "crashed"
    LOST = "lost"
    STOPPED = "stopped"
    SUPERVISOR = "supervisor"
    NODE = "node"
    DISK = "disk"
    HUNG = "hung"
    DAMAGED = "damaged"
    UNSTARTED = "unstarted"
    ROOM = "room"
    PERSON = "person"
    DEPENDENCY = "dependency"
    QUEUE_TIMEOUT = "queue-timeout"
    START_TIMEOUT = "start-timeout"
    RUN_TIMEOUT = "run-timeout"

    @property
    def words(self) -> str:
        return WORDS[self]


WORDS = {
    Ending.FAILED: "its own error",
    Ending.CRASHED: "its worker crashed",
    Ending.LOST: "its worker was gone",
    Ending.STOPPED: "its worker was stopped from outside",
    Ending.SUPERVISOR: "its supervisor ended",
    Ending.NODE: "its machine was gone",
    Ending.DISK: "the disk was full",
    Ending.HUNG: "it hung",
    Ending.DAMAGED: "its files were damaged",
    Ending.UNSTARTED: "it could not be started",
    Ending.ROOM: "it made room",
    Ending.PERSON: "it was cancelled",
    Ending.DEPENDENCY: "the job before it did not succeed",
    Ending.QUEUE_TIMEOUT: "it waited too long",
    Ending.START_TIMEOUT: "it did not start in time",
    Ending.RUN_TIMEOUT: "it ran too long",
}
"""Of a table of attempts."""


class RetryPolicy(NamedTuple):
    """How often, and seconds before the first time; each time after that four times as long."""

    retries: int
    first_s: float


POLICIES = {
    Ending.LOST: RetryPolicy(2, 5.0),
    Ending.STOPPED: RetryPolicy(2, 5.0),
    Ending.SUPERVISOR: RetryPolicy(2, 5.0),
    Ending.NODE: RetryPolicy(2, 5.0),
    Ending.DISK: RetryPolicy(4, 30.0),
}
"""What is worth another try: nothing in the job is to blame. Whatever else is asked, nothing else is tried again."""
GROWTH, LONGEST_S = 4.0, 3600.0
STRIKES = frozenset({Ending.CRASHED, Ending.LOST, Ending.HUNG, Ending.SUPERVISOR, Ending.NODE})
"""Endings of a worker or a supervisor that did not end of itself."""
MOST_STRIKES = 3
TIMEOUTS = frozenset({Ending.QUEUE_TIMEOUT, Ending.START_TIMEOUT, Ending.RUN_TIMEOUT})


class RetryDecision(NamedTuple):
    """`again_s`: seconds after which it is tried again; None where it is not. `aside`: it is put aside until it is
    released."""

    again_s: float | None
    strikes: int
    aside: bool = False


def strike_limit(asked: int | None) -> int:
    """Strikes in a row after which a job is put aside: not before the retries that a person asked for were made."""
    return max(MOST_STRIKES, (asked or 0) + 1)


def decide_retry(ending: Ending, *, retried: int, strikes: int, asked: int | None = None) -> RetryDecision:
    """After an attempt that ended so. `retried`: how often it was tried again by itself since a person last asked for
    it; `strikes`: how many attempts before this one ended a worker or a supervisor, without another between; `asked`:
    retries."""
    struck = strikes + 1 if ending in STRIKES else 0
    if struck >= strike_limit(asked):
        return RetryDecision(None, struck, aside=True)
    policy = POLICIES.get(ending)
    if policy is None or retried >= (policy.retries if asked is None else asked):
        return RetryDecision(None, struck)
    return RetryDecision(min(LONGEST_S, policy.first_s * GROWTH**retried), struck)
