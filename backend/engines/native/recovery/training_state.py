"""The state of a training in a folder: parameters, optimizer and curve, so that a later attempt reaches the same bytes.

A file of tensors a step at which it was saved, and a small one that names the last and is replaced as a whole. Knows no
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from backend import files
from backend.domain.frozen import Frozen
from backend.engines.attempt_state import AttemptState

NAME = "state.json"


class Point(Frozen):
    """A point of the loss curve, in nats per token. `training` is the mean over the steps since the point before; None
    at the start."""

    step: int
    validation: float
    training: float | None = None


class Steps(AttemptState):
    """The steps done so far, and the training loss since the last point."""

    step: int = 0
    """Steps done."""
    best_step: int = 0
    worse: int = 0
    """Points of the curve since the best one."""
    summed: float = 0.0
    """Training losses since the last point, and their number."""
    counted: int = 0
    stopped: str = ""
    """Why no further step is made; empty while there are any."""


class State(Steps):
    """State of a recovery."""

    curve: list[Point] = Field(default_factory=list)
    seconds: float = 0.0
    """Seconds of training and writing answers, over all attempts."""
    validation_seconds: float = 0.0
    """Seconds of the first validation."""

    @property
    def best(self) -> Point:
        """The best point. Raises StopIteration before the first validation."""
        return next(point for point in self.curve if point.step == self.best_step)


SavedState = TypeVar("SavedState", bound=Steps)


def save(folder: Path, state: Steps, tensors: dict[str, Any]) -> None:
    """Write the state with `tensors` as torch.save takes them. Raises DiskFull or WorkError."""
    import torch

    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = _tensors(folder, state.step)
    with files.staged_file(path) as staged:
        torch.save(tensors, staged)
    files.write(folder / NAME, state.model_dump_json())
    for old in folder.glob("step-*.pt"):
        if old != path:
            old.unlink()


def load(folder: Path, key: str, kind: type[SavedState]) -> tuple[SavedState, dict[str, Any]] | None:
    """Return what an earlier attempt at the same run left; None where there is none, or it cannot be read."""
    import pickle

    import torch

    state = kind.read(folder / NAME, key)
    if state is None:
        return None
    try:
        return state, torch.load(_tensors(folder, state.step), weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        return None


def _tensors(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}.pt"
