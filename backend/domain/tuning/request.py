"""The request of a search: goal, limits at a load, quality floor, budget, and how wide to look."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.limits.slo import Slo
from backend.domain.tuning.stacks import SpaceChoice

Goal = Literal["cost", "latency", "throughput", "front"]
GOAL_WORDS: dict[Goal, str] = {
    "cost": "the lowest price per token",
    "latency": "the lowest latency",
    "throughput": "the most tokens per second",
    "front": "the best trade-offs of latency and price",
}
LEAST_MINUTES = 2.0
"""A budget below this has no room for one evaluation of two servers."""


class TuneRequest(Frozen):
    """`model` is a source without settings. Nothing begins that is not expected to end within `budget_min`."""

    model: str
    goal: Goal = "cost"
    streams: tuple[int, ...] = Field((1, 4), min_length=1, max_length=6)
    """Loads that all limits hold at: requests at the same time."""
    limits: Slo = Slo()
    max_kl: float | None = Field(None, gt=0)
    """The most mean KL divergence from the original, nats per token."""
    max_kl_p99: float | None = Field(None, gt=0)
    """The same for the 99th percentile over tokens, where it was measured."""
    max_length_change: float | None = Field(None, gt=0, le=10)
    """The most by which answers may be longer or shorter on average than the original's, as a share; the model ends
    them itself then."""
    tasks: tuple[str, ...] = ()
    """lm-eval tasks that are scored on what is served, as `whetstone evaluate` takes them."""
    task_limit: int | None = Field(None, ge=1)
    """Only the first so many samples of each task."""
    max_task_loss: float = Field(0.02, gt=0, le=1)
    """The most that a task's score may be worse than the original's, in the score's own unit."""
    budget_min: float = Field(20.0, ge=LEAST_MINUTES, le=7 * 24 * 60)
    disk_gb: float = Field(5.0, gt=0, le=10_000)
    space: SpaceChoice = SpaceChoice()
    against: tuple[str, ...] = ()
    """Further sources that race against the winner: a user's own stack, or `auto_tune` for what vLLM's rule picks."""
    workload: str | None = None
    max_tokens: int = Field(32, ge=1, le=4096)
    price_per_hour: float | None = Field(None, gt=0)
    seed: int = Field(0, ge=0, le=2**31 - 1)
