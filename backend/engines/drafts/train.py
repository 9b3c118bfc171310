"""Trains a draft: answers of the target, steps within a budget of time, acceptance on what was set aside, best weights.

AdamW with a warm-up and a cosine. How many steps fit the budget is decided once, by timing a few of them, and stored:
everything after that depends on the step alone, so that a run that was killed and went on comes to the same bytes on a
processor. Stops early if the accepted length no longer grows. Knows nothing of jobs, and of a proposer only what
`proposer` says.
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
from backend.engines.native.recovery.recovery import WARM_UP, descend, versions
from backend.engines.native.recovery.sequences import sequence_numbers
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
    """One training."""

    target_dir: Path
    out_dir: Path
    """A folder that exists and is empty."""
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
        return sum(measured.length for measured in self.acceptance) / len(self.acceptance)


class State(training_state.Steps):
    """The state of a training."""

    total: int | None = None
    """Steps to be made; None until that is decided."""
    seconds: float = 0.0
    """Seconds of steps and checks so far, over all attempts."""
    curve: list[Checkpoint] = Field(default_factory=list)


class TrainResult(Frozen):
    """The result of a training, for the manifest."""

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
    """Train a draft and write it to `out_dir`. Phases: answers, train, save.

    `is_held_out` says which prompts the target may not write for itself. Raises RequestError (the budget, options that
    the kind has not), ModelDamaged, WorkError (memory ran out, nothing finite) and DiskFull.
    """
    with memory_errors("Memory ran out in training: use a smaller `batch`, shorter answers, or more memory."):
        # 1. Load the target, and make the draft.
        target = Target(request.target_dir, request.device)
        draft = make_proposer(target, request.options)

        # 2. Let the target answer the prompts; an earlier attempt at the same request may have begun.
        described = {"prompts": request.prompts, "options": request.options.model_dump(mode="json"), **versions()}
        key = request_key(described, weight_files(request.target_dir))
        gathering = Gathering(draft, request.prompts, request.work_dir / "answers", key, is_held_out=is_held_out)
        data = gathering.run(progress)

        # 3. Train on the answers.
        return learn(request, draft, data, key, progress)


def learn(request: TrainRequest, draft: Proposer, data: TrainingData, key: str, progress: Progress) -> TrainResult:
    """Train on gathered answers; otherwise as `train`."""
    draft.prepare([sequence.answered.answer for sequence in data.training])
    return _Run(request, draft, data, key, progress).run()


class _Run:
    """One training: the draft, its optimizer, and how far it is."""

    def __init__(
        self, request: TrainRequest, draft: Proposer, data: TrainingData, key: str, progress: Progress
    ) -> None:
        import torch

        # 1. What is trained, on what, and at which rate.
        self.request, self.options, self.draft, self.data = request, request.options, draft, data
        self.target, self.progress, self.loss = draft.target, progress, LOSSES[request.options.loss]
        start = self.options.start if self.options.kind == "small" else "head"
        self.highest = self.options.learning_rate or RATES[start]
        self.batch = self.options.batch or (SEQUENCES_ON_CPU if self.target.device == "cpu" else SEQUENCES)
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
        # 1. Decide the number of steps, and measure the untrained draft.
        if self.state.total is None:
            self.state.total = self._decide_steps()
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

    def _decide_steps(self) -> int:
        """Return how many steps fit the rest of the budget, by timing a few that are undone.

        Raises RequestError if they are too few.
        """
        if self.options.steps is not None:
            return self.options.steps
        # 1. Time a few steps (after a first one that warms up) and one check, and undo them.
        before = self.draft.state()
        self._learn(0, 1.0)
        began = time.monotonic()
        for step in range(1, 1 + TIMED):
            self._learn(step, (step - 0.5) / TIMED)
        step_s = (time.monotonic() - began) / TIMED
        began = time.monotonic()
        self._measure()
        check_s = time.monotonic() - began
        self.draft.load(before)
        self.optimizer = type(self.optimizer)(
            self.draft.parameters(), lr=self.highest, betas=(0.9, 0.95), weight_decay=0.01
        )
        # 2. Divide what is left of the budget by the time of a step.
        budget = 60 * self.options.minutes - self.data.seconds - CHECKS * check_s
        self.clock_s = time.monotonic()
        if budget / step_s < FEWEST:
            needed = (self.data.seconds + CHECKS * check_s + 2 * FEWEST * step_s) / 60
            raise RequestError(
                f"{self.options.minutes:g} minutes end before a first checkpoint (the answers took "
                f"{self.data.seconds:.0f} s, a step takes {step_s:.1f} s here): give {math.ceil(needed)} minutes or "
                "more."
            )
        return int(budget / step_s)

    def _batch(self, step: int) -> Batch:
        """Make the batch of a step: known answers, or their prompts answered now by the draft."""
        training = self.data.training
        chosen = [training[place] for place in sequence_numbers(len(training), step, self.batch, self.options.seed)]
        own = int((step + 1) * self.options.on_policy) > int(step * self.options.on_policy)
        return self._answered_by_draft(chosen, step) if own else batch_of(self.target, chosen)

    def _answered_by_draft(self, known: list[TrainingSequence], step: int) -> Batch:
        """Make a batch of the same prompts with answers of the draft. Raises RequestError if it cannot answer."""
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
        """Make one step, then measure or save as its number and the time ask for."""
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
        state, (validation, measured) = self.state, self._measure()
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
            earlier.length for earlier in state.curve if earlier.step == state.best_step
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

    def _measure(self) -> tuple[float, tuple[MeasuredAcceptance, ...]]:
        """Return the mean loss on what was set aside, and acceptance by temperature.

        Raises WorkError if the loss is not finite.
        """
        import torch

        # 1. Loss and acceptance of a few sequences at a time, all of one temperature.
        loss, parts, positions = 0.0, dict[float, list[Acceptance]](), 0
        self.draft.set_share(1.0)
        for known in _chunks(sorted(self.data.aside, key=lambda sequence: sequence.answered.temperature), SEQUENCES):
            batch = batch_of(self.target, known)
            with torch.no_grad():
                count = int(batch.predicting.sum())
                loss, positions = loss + float(self.draft.loss(batch, self.loss)) * count, positions + count
                accepted = self.draft.accepted(batch, self.options.tokens)
            begins = torch.tensor([len(sequence.answered.prompt) for sequence in known], device=accepted.device)
            ends = torch.tensor([len(sequence) - 1 for sequence in known], device=accepted.device)
            parts.setdefault(known[0].answered.temperature, []).append(acceptance.walk(accepted, begins, ends))
        if not math.isfinite(loss):
            raise WorkError("The draft's loss is not finite: lower `learning_rate`, or check the target's weights.")

        # 2. Sum the counts of each temperature.
        by_temperature = tuple(
            _measured_acceptance(temperature, acceptance.total(counts)) for temperature, counts in sorted(parts.items())
        )
        return loss / max(1, positions), by_temperature

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
        # The acceptance is that of the weights that are saved, not of the last ones.
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
    """Cut the sequences into lists of at most `size`, each of one temperature."""
    chunks: list[list[TrainingSequence]] = []
    for _, group in groupby(known, key=lambda sequence: sequence.answered.temperature):
        alike = list(group)
        chunks += [alike[start : start + size] for start in range(0, len(alike), size)]
    return chunks


def rate(step: int, steps: int) -> float:
    """Return the learning rate at `step` (from 0) relative to the highest: a linear rise, then a cosine down to
    LEAST_RATE."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
