"""The training of a draft: answers, steps under a budget of time, acceptance on what was set aside, the best weights at
the end.

AdamW with a warm-up and a cosine. How many steps fit the budget is settled once, from the first of them, and kept: from
there on everything depends on the step alone, so that a run that was killed and went on comes to the same bytes on a
processor. Stops early where the accepted length no longer grows. Knows nothing of jobs, and of a proposer only what
`base` says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import Field

from backend.domain.errors import RequestError, WorkError
from backend.domain.frozen import Frozen
from backend.domain.jobs.progress import Progress
from backend.domain.recipe.draft_training import DraftKind, Training
from backend.engines.drafts import acceptance
from backend.engines.drafts.acceptance import Acceptance
from backend.engines.drafts.losses import LOSSES
from backend.engines.drafts.proposer import Batch, Proposer
from backend.engines.drafts.target import Target
from backend.engines.drafts.training_data import (
    AnsweredPrompt,
    Gathering,
    TrainingData,
    TrainingSequence,
    batch_of,
    batch_of_new,
)
from backend.engines.native.files.resume import request_key
from backend.engines.native.recovery import training_state
from backend.engines.native.recovery.recovery import WARM_UP, descend, sequence_numbers, versions
from backend.layered.layer_passes import memory_errors
from backend.layered.weight_source import weight_files

PROPOSERS: dict[DraftKind, tuple[str, str]] = {
    "small": ("small_model", "Small"),
    "eagle3": ("eagle3", "Eagle3"),
    "medusa": ("medusa", "Medusa"),
}
"""For each kind of draft, a module of this package and the class in it."""
TIMED = 4
"""Steps timed, at evenly spread shares of the training, to predict how many fit the budget."""
SEQUENCES, SEQUENCES_ON_CPU = 8, 2
"""Sequences per step if the options name none."""
FEWEST = 20
"""Steps, below which nothing is learned that a first checkpoint would be worth."""
CHECKS = 12
"""Times at which acceptance is measured, the first and the last included."""
PATIENCE = 4
"""Checks in a row without a longer accepted length that end the training."""
SAVED_EVERY_S = 30.0
OVERDUE = 1.5
"""Times the budget at which it ends however many steps are left: the machine has become slower."""
LEAST_RATE = 0.05
"""Learning rate at the end, relative to the highest."""
RATES: dict[str, float] = {"fresh": 3e-3, "pruned": 5e-4, "head": 2e-3}
"""Highest learning rates where none is asked for, by what the draft begins as."""


class TrainRequest(Frozen):
    target_dir: Path
    out_dir: Path
    """A folder that is there and empty."""
    options: Training
    prompts: tuple[str, ...]
    device: str = "cpu"
    work_dir: Path
    """Folder of answers and state, for a later attempt."""


class MeasuredAcceptance(Frozen):
    """Acceptance on the answers of one temperature that were set aside, by vLLM's rule."""

    temperature: float
    rate: float
    """Accepted of all proposed."""
    length: float
    """Tokens a round, the target's own included."""
    by_position: tuple[float, ...]
    rounds: float


class Checkpoint(Frozen):
    """A point of the curve. Losses are means a position of the loss that is trained by; `training` since the point
    before."""

    step: int
    seconds: float
    validation: float
    training: float | None = None
    acceptance: tuple[MeasuredAcceptance, ...]

    @property
    def length(self) -> float:
        """Tokens a round, over the temperatures: what is optimized."""
        return sum(each.length for each in self.acceptance) / len(self.acceptance)


class State(training_state.Steps):
    """`total` steps are to be made; None until that is settled."""

    total: int | None = None
    seconds: float = 0.0
    """Seconds of steps and checks so far, over all attempts."""
    curve: list[Checkpoint] = Field(default_factory=list)


class TrainResult(Frozen):
    kind: DraftKind
    best_step: int
    steps: int
    stopped: str
    curve: list[Checkpoint]
    acceptance: tuple[MeasuredAcceptance, ...]
    """Acceptance of the weights that are saved."""
    data: dict[str, Any]
    draft: dict[str, Any]
    """Facts of the draft: parameters, layers."""
    learning_rate: float
    seconds: dict[str, float]
    versions: dict[str, str]


def make_proposer(target: Target, options: Training) -> Proposer:
    """Make the draft of the chosen kind. Raises RequestError where none can be trained for such a target."""
    module, name = PROPOSERS[options.kind]
    draft: Proposer = getattr(import_module(f"backend.engines.drafts.{module}"), name)(target, options)
    return draft


def train(
    request: TrainRequest, progress: Progress, is_held_out: Callable[[str], bool] = lambda text: False
) -> TrainResult:
    """Train a draft and write it to `out_dir`. Phases: answers, train, save. `is_held_out` says which prompts the
    target may not write for itself.

    Raises RequestError (the budget, options that the kind has not), ModelDamaged, WorkError (memory ran out, nothing
    finite) and DiskFull.
    """
    with memory_errors("Memory ran out in training: use a smaller `batch`, shorter answers, or more memory."):
        target = Target(request.target_dir, request.device)
        draft = make_proposer(target, request.options)
        described = {"prompts": request.prompts, "options": request.options.model_dump(mode="json"), **versions()}
        key = request_key(described, weight_files(request.target_dir))
        folder = request.work_dir / "answers"
        gathering = Gathering(
            target, request.options, request.prompts, folder, key, layers=draft.layers, is_held_out=is_held_out
        )
        return learn(request, target, draft, gathering.run(progress), key, progress)


def learn(
    request: TrainRequest, target: Target, draft: Proposer, data: TrainingData, key: str, progress: Progress
) -> TrainResult:
    """Train on gathered answers; otherwise as `train`."""
    draft.prepare([sequence.answered.answer for sequence in data.training])
    return _Run(request, target, draft, data, key, progress).run()


class _Run:
    def __init__(
        self, request: TrainRequest, target: Target, draft: Proposer, data: TrainingData, key: str, progress: Progress
    ) -> None:
        import torch

        # 1. What is trained, on what, and at which rate.
        self.request, self.options, self.target, self.draft, self.data = request, request.options, target, draft, data
        self.progress, self.loss = progress, LOSSES[request.options.loss]
        start = self.options.start if self.options.kind == "small" else "head"
        self.highest = self.options.learning_rate or RATES[start]
        self.batch = self.options.batch or (SEQUENCES_ON_CPU if target.device == "cpu" else SEQUENCES)
        self.optimizer = torch.optim.AdamW(draft.parameters(), lr=self.highest, betas=(0.9, 0.95), weight_decay=0.01)
        # 2. Continue from an earlier attempt, if there is one.
        self.state, self.best = State(key=key), draft.state()
        saved = training_state.load(self._folder, key, State)
        if saved is not None:
            self.state, tensors = saved
            draft.load(tensors["draft"])
            self.optimizer.load_state_dict(tensors["optimizer"])
            self.best = tensors["best"]
            progress.note(f"{self.state.step} steps were done before: going on with the next.")
        self.clock_s = self.saved = time.monotonic()

    @property
    def _folder(self) -> Path:
        return self.request.work_dir / "state"

    def run(self) -> TrainResult:
        # 1. Settle the number of steps, and check the untrained draft.
        if self.state.total is None:
            self.state.total = self._settled()
        self.every = max(1, math.ceil(self.state.total / (CHECKS - 1)))
        self.progress.phase("train", "Training the draft", total=self.state.total, unit="steps", weight=0.9 - 0.45)
        for point in self.state.curve:
            self._tell(point)
        if not self.state.curve:
            self._check()
        # 2. Train until the steps, the time or the patience end.
        while not self.state.stopped:
            self._step()
        # 3. Write the best weights.
        self.progress.note(self._ended())
        self.progress.phase("save", "Writing the draft", weight=0.02)
        self.draft.load(self.best)
        self.draft.save(self.request.out_dir)
        return self._result()

    def _settled(self) -> int:
        """Return how many steps the rest of the budget gives, from a few that are taken back. Raises RequestError for
        too few."""
        if self.options.steps is not None:
            return self.options.steps
        # 1. Time a few steps (after a first one that warms up) and one check, and undo them.
        before = self.draft.state()
        self._learn(0, 1.0)
        began = time.monotonic()
        for step in range(1, 1 + TIMED):
            self._learn(step, (step - 0.5) / TIMED)
        each = (time.monotonic() - began) / TIMED
        began = time.monotonic()
        self._measured()
        check = time.monotonic() - began
        self.draft.load(before)
        self.optimizer = type(self.optimizer)(
            self.draft.parameters(), lr=self.highest, betas=(0.9, 0.95), weight_decay=0.01
        )
        # 2. Divide what is left of the budget by the time of a step.
        budget = 60 * self.options.minutes - self.data.seconds - CHECKS * check
        self.clock_s = time.monotonic()
        if budget / each < FEWEST:
            needed = (self.data.seconds + CHECKS * check + 2 * FEWEST * each) / 60
            raise RequestError(
                f"{self.options.minutes:g} minutes end before a first checkpoint (the answers took "
                f"{self.data.seconds:.0f} s, a step takes {each:.1f} s here): give {math.ceil(needed)} minutes or more."
            )
        return int(budget / each)

    def _batch(self, step: int) -> Batch:
        """Make the batch of a step: known answers, or their prompts answered now by the draft."""
        training = self.data.training
        chosen = [training[place] for place in sequence_numbers(len(training), step, self.batch, self.options.seed)]
        own = int((step + 1) * self.options.on_policy) > int(step * self.options.on_policy)
        return self._own(chosen, step) if own else batch_of(self.target, chosen)

    def _own(self, known: list[TrainingSequence], step: int) -> Batch:
        prompts = [sequence.answered.prompt for sequence in known]
        generated = self.draft.answer(prompts, self.options.seed * 1_000_003 + step)
        if generated is None:
            raise RequestError("`on_policy` is for small models, which answer by themselves: leave it out.")
        answered = [
            AnsweredPrompt(prompt, answer, self.options.temperature)
            for prompt, answer in zip(prompts, generated, strict=True)
        ]
        return batch_of_new(self.target, answered, self.draft.layers)

    def _learn(self, step: int, share: float) -> float:
        """Make one optimizer step at `share` of all steps; return the loss before it."""
        self.draft.set_share(share)
        return descend(self.optimizer, self.draft.loss(self._batch(step), self.loss))

    def _step(self) -> None:
        # 1. Make a step at the rate of its time.
        state, total = self.state, self.state.total
        assert total is not None
        for group in self.optimizer.param_groups:
            group["lr"] = self.highest * rate(state.step, total)
        loss = self._learn(state.step, state.step / total)
        state.step, state.summed, state.counted = state.step + 1, state.summed + loss, state.counted + 1
        # 2. Count the time; then check, save, or go on.
        now = time.monotonic()
        state.seconds, self.clock_s = state.seconds + now - self.clock_s, now
        overdue = self.options.steps is None and state.seconds + self.data.seconds > OVERDUE * 60 * self.options.minutes
        if not math.isfinite(loss):
            state.stopped = "not finite"
        elif state.step % self.every == 0 or state.step == total or overdue:
            self._check(overdue=overdue)
        elif now - self.saved > SAVED_EVERY_S:
            self._save()
        self.progress.advance(state.step, loss=round(loss, 4))

    def _check(self, *, overdue: bool = False) -> None:
        """Add a point to the curve: keep the best weights, and stop after too many worse points."""
        # 1. Measure on what was set aside.
        state, (validation, measured) = self.state, self._measured()
        training = state.summed / state.counted if state.counted else None
        point = Checkpoint(
            step=state.step,
            seconds=round(state.seconds, 1),
            validation=validation,
            training=training,
            acceptance=measured,
        )
        # 2. Keep the weights if the accepted length is the longest so far.
        better = not state.curve or point.length > next(
            each.length for each in state.curve if each.step == state.best_step
        )
        state.curve.append(point)
        state.summed, state.counted, state.worse = 0.0, 0, 0 if better else state.worse + 1
        if better:
            state.best_step, self.best = state.step, self.draft.state()
        # 3. Stop after the steps, the time, or too many checks without gain.
        if state.step == state.total:
            state.stopped = "steps"
        elif overdue:
            state.stopped = "time"
        elif state.worse >= PATIENCE:
            state.stopped = "patience"
        self._tell(point)
        self._save()

    def _tell(self, point: Checkpoint) -> None:
        self.progress.point(**point.model_dump(mode="json"), best=point.step == self.state.best_step)

    def _measured(self) -> tuple[float, tuple[MeasuredAcceptance, ...]]:
        """Mean loss over what was set aside, and acceptance by temperature. Raises WorkError where it is not finite."""
        import torch

        loss, parts, positions = 0.0, dict[float, list[Acceptance]](), 0
        self.draft.set_share(1.0)
        for known in _chunks(sorted(self.data.aside, key=lambda sequence: sequence.answered.temperature), SEQUENCES):
            batch = batch_of(self.target, known)
            with torch.no_grad():
                count = int(batch.predicting.sum())
                loss, positions = loss + float(self.draft.loss(batch, self.loss)) * count, positions + count
                accepted = self.draft.accepted(batch, self.options.tokens)
            begins = torch.tensor([len(sequence.answered.prompt) for sequence in known], device=accepted.device)
            ends = torch.tensor([len(each) - 1 for each in known], device=accepted.device)
            parts.setdefault(known[0].answered.temperature, []).append(acceptance.walk(accepted, begins, ends))
        if not math.isfinite(loss):
            raise WorkError("The draft's loss is not finite: lower `learning_rate`, or check the target's weights.")
        return loss / max(1, positions), tuple(
            _measured_acceptance(temperature, acceptance.total(each)) for temperature, each in sorted(parts.items())
        )

    def _save(self) -> None:
        tensors = {"draft": self.draft.state(), "best": self.best, "optimizer": self.optimizer.state_dict()}
        training_state.save(self._folder, self.state, tensors)
        self.saved = time.monotonic()

    def _ended(self) -> str:
        why = {
            "steps": "after all steps",
            "time": "since the time was over",
            "patience": f"early, after {PATIENCE} looks without a longer accepted length",
            "not finite": "since the loss was no longer finite",
        }[self.state.stopped]
        return f"Training ended at step {self.state.step}, {why}; step {self.state.best_step} is kept."

    def _result(self) -> TrainResult:
        state = self.state
        best = next(point for point in state.curve if point.step == state.best_step)
        return TrainResult(
            kind=self.options.kind,
            best_step=state.best_step,
            steps=state.step,
            stopped=state.stopped,
            curve=state.curve,
            acceptance=best.acceptance,
            data=self.data.facts,
            draft=self.draft.described(),
            learning_rate=self.highest,
            seconds={"answers": self.data.seconds, "training": round(state.seconds, 1)},
            versions=versions(),
        )


def _measured_acceptance(temperature: float, acceptance: Acceptance) -> MeasuredAcceptance:
    return MeasuredAcceptance(
        temperature=temperature,
        rate=acceptance.rate,
        length=acceptance.length,
        by_position=acceptance.by_position,
        rounds=acceptance.rounds,
    )


def _chunks(known: list[TrainingSequence], size: int) -> list[list[TrainingSequence]]:
    """At most `size` each, and of one temperature."""
    alike = [list(each) for _, each in groupby(known, key=lambda sequence: sequence.answered.temperature)]
    return [part[start : start + size] for part in alike for start in range(0, len(part), size)]


def rate(step: int, steps: int) -> float:
    """Return the learning rate at `step` (from 0) relative to the highest: a linear rise, then a cosine down to
    LEAST_RATE."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
