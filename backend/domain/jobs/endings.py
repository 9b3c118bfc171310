"""Why an attempt ended without success, and what follows: a retry after a pause, putting aside, or a person's turn."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Ending(StrEnum):
    FAILED = "failed"
    """Failed by its own error (bad input, a limit that was missed, a bug): the same again would end the same way."""
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
"""Words that a table of attempts shows."""


class RetryPolicy(NamedTuple):
    """The number of retries of a job, and seconds before the first retry; each later pause is four times as long."""

    retries: int
    first_s: float


POLICIES = {
    Ending.LOST: RetryPolicy(2, 5.0),
    Ending.STOPPED: RetryPolicy(2, 5.0),
    Ending.SUPERVISOR: RetryPolicy(2, 5.0),
    Ending.NODE: RetryPolicy(2, 5.0),
    Ending.DISK: RetryPolicy(4, 30.0),
}
"""Endings that are worth a retry, since nothing in the job caused them. No other ending is retried, even if a person
asked for retries."""
GROWTH, LONGEST_S = 4.0, 3600.0
STRIKES = frozenset({Ending.CRASHED, Ending.LOST, Ending.HUNG, Ending.SUPERVISOR, Ending.NODE})
"""Endings in which a worker or a supervisor died."""
MOST_STRIKES = 3
TIMEOUTS = frozenset({Ending.QUEUE_TIMEOUT, Ending.START_TIMEOUT, Ending.RUN_TIMEOUT})


class RetryDecision(NamedTuple):
    """`retry_s`: seconds before the retry; None for no retry. `strikes`: deaths in a row so far. `aside`: the job is
    put aside until a person releases it."""

    retry_s: float | None
    strikes: int
    aside: bool = False


def strike_limit(retries: int | None) -> int:
    """Return the strikes in a row after which a job is put aside: never before the requested `retries` were made."""
    return max(MOST_STRIKES, (retries or 0) + 1)


def decide_retry(ending: Ending, *, retried: int, strikes: int, retries: int | None = None) -> RetryDecision:
    """Decide what follows an attempt with that ending.

    `retried`: automatic retries since a person last asked for the job. `strikes`: attempts in a row before this one in
    which a worker or a supervisor died. `retries`: how many a person asked for; None for the ending's policy.
    """
    struck = strikes + 1 if ending in STRIKES else 0
    if struck >= strike_limit(retries):
        return RetryDecision(None, struck, aside=True)
    policy = POLICIES.get(ending)
    if policy is None or retried >= (policy.retries if retries is None else retries):
        return RetryDecision(None, struck)
    return RetryDecision(min(LONGEST_S, policy.first_s * GROWTH**retried), struck)
