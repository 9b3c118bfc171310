"""Recovers a pruned or a quantized model by a short fine-tune.

A pruned one learns low-rank adapters, which are merged into its matrices at the end, as PERP does (Zimmer et al. 2023,
arXiv 2312.15230; `adapters`); a quantized one learns what it stores (`quantized_weights`). The loss is the mean KL
divergence from the original's next-token distributions over the full vocabulary (Hinton et al. 2015, arXiv 1503.02531,
at temperature 1), or without a teacher the text's own next-token loss. The whole model is in memory, in fp32, unlike in
the passes that stream it; steps multiply in bfloat16 where the hardware has it (Micikevicius et al. 2017, arXiv
1710.03740, section 3.1), and validation in fp32. Deterministic on a processor: the same request gives the same bytes,
also when it was stopped and went on. Knows nothing of jobs and recipes.
"""

from __future__ import annotations

import math
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from backend import files
from backend.domain.errors import WorkError
from backend.domain.figures import counted
from backend.domain.frozen import Frozen
from backend.domain.jobs.progress import Progress
from backend.domain.recipe.recovery import (
    ANSWERED,
    BEGINNING,
    FEWEST_TIMED,
    TIMED_VALIDATIONS,
    VALIDATIONS,
    Recover,
    RecoverQuantized,
)
from backend.engines.drafts.generation import Sampling, generate
from backend.engines.native import calibration
from backend.engines.native.files import checkpoint
from backend.engines.native.files.resume import request_key
from backend.engines.native.recovery import training_state
from backend.engines.native.recovery.adapters import PrunedWeights, load
from backend.engines.native.recovery.quantized_weights import QuantizedWeights
from backend.engines.native.recovery.sequences import Split, sequence_numbers, split_data
from backend.engines.native.recovery.teacher import Teacher
from backend.engines.native.recovery.training_state import Point, State
from backend.layered.layer_passes import memory_errors
from backend.layered.matrix_products import fast_products, half_precision
from backend.layered.weight_source import weight_files

if TYPE_CHECKING:
    import torch

VERSIONS = ("torch", "transformers", "safetensors")
WARM_UP = 0.05
"""The share of the steps over which the learning rate rises."""
VALIDATING = 0.2
"""The share of the minutes that validations may take, but for the fewest."""
MOST_GRADIENT = 1.0
"""Norm to which the gradient is cut."""
SAVED_EVERY_S = 30.0
OFTEN = 1.5
"""Readings of each sequence from which on the last note asks for more text, unless the loss still fell. On
SmolLM2-135M-Instruct 11 sequences were read 18 times: the training loss fell to 0.08, the validation loss hardly
(decision 0066)."""
Stopped = Literal["steps", "minutes", "patience", "not finite"]
ANSWERING = 1 / 3
"""The share of the minutes after which it begins no further ones."""
TEMPERATURE = 1.0
"""Its own distribution, as LLM-QAT draws it (Liu et al. 2023, arXiv 2305.17888, section 3.1)."""


class RecoverRequest(Frozen):
    """One recovery: the pruned or quantized model, its original, and the options."""

    original_dir: Path
    """The teacher, and whose tokenizer reads the text."""
    start_dir: Path
    """The pruned checkpoint in 16 bit, or the quantized one; its names are the original's."""
    plain_dir: Path | None = None
    """The 16-bit checkpoint that was quantized; None for a pruned one."""
    out_dir: Path
    """Must not exist yet, or be empty."""
    linears: tuple[str, ...] = ()
    """The pruned matrices, as the checkpoint names their modules; none for a quantized one, whose own are taken."""
    keep_zeros: bool = True
    """False for a smaller model, in which no weight has to stay at zero: its training takes fewer operations."""
    options: Recover | RecoverQuantized
    texts: list[str]
    samples: int
    """The sequences that calibrated, which are drawn by the same seed; what validates is none of them."""
    length: int
    seed: int = 0
    device: str = "cpu"
    work_dir: Path
    """Folder of the state, for a later attempt."""


class RecoverResult(Frozen):
    """The result; losses are of the validation sequences, in nats per token."""

    improved: bool
    """True if `out_dir` differs from the checkpoint that it began with."""
    learning_rate: float
    """At its highest."""
    best_step: int
    steps: int
    """Made, of those that were asked for."""
    stopped: Stopped
    loss_before: float
    loss_after: float
    curve: list[Point]
    data: dict[str, Any]
    """`training` and `validation`: what `calibration.describe` says of the tokens."""
    versions: dict[str, str]


def recover(request: RecoverRequest, progress: Progress) -> RecoverResult:
    """Fine-tune and write `out_dir`. Phase: recover (unit: step, or second where minutes end it).

    Raises InvalidWorkload (too little text), RequestError (`out_dir` not empty), ImpossibleStack (experts, an unknown
    family), WorkError (memory ran out, or the output is not finite before the first step) and DiskFull.
    """
    options = request.options
    size = (request.samples, request.length, request.seed)
    split = split_data(*calibration.divide_tokens(request.original_dir, request.texts, *size))
    checkpoint.make_empty_folder(request.out_dir)
    total, unit = (options.steps, "steps") if options.minutes is None else (60 * options.minutes, "s")
    progress.phase("recover", "Recovering by a short fine-tune", total=total, unit=unit, weight=8.0)
    without = "" if isinstance(options, RecoverQuantized) else "`teacher: false`, "
    with fast_products(), memory_errors(f"Memory ran out in recovery: use a smaller `batch`, {without}or more memory."):
        return _Run(request, split, progress).run()


def open_learned(request: RecoverRequest) -> PrunedWeights | QuantizedWeights:
    """Load the model of the request with what it learns. Raises ImpossibleStack and ModelDamaged."""
    if isinstance(request.options, Recover):
        rank, zeros = request.options.rank, request.keep_zeros
        return PrunedWeights(request.start_dir, request.linears, rank, request.seed, request.device, keep_zeros=zeros)
    plain = request.plain_dir or request.original_dir
    return QuantizedWeights(plain, request.start_dir, request.options.learn, request.device)


class _Run:
    """One run: the model with what it learns, its teacher, and how far it is."""

    def __init__(self, request: RecoverRequest, split: Split, progress: Progress) -> None:
        import torch

        # 1. The model with what it learns, and its teacher.
        self.request, self.split, self.progress, self.options = request, split, progress, request.options
        self.learned = open_learned(request)
        self.model, self.named = self.learned.model, self.learned.named()
        self.teacher = Teacher(request.original_dir, request.device) if self.options.teacher else None
        self.highest = self.options.learning_rate or self.learned.usual_rate
        # 2. The optimizer, and where an earlier attempt stopped.
        groups = self.learned.groups(self.highest)
        self.rates = [float(group["lr"]) for group in groups]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        self.every = max(1, self.options.steps // VALIDATIONS)
        self.saved = time.monotonic()
        self.state, self.best = self._begin()
        self.began = time.monotonic() - self.state.seconds
        self.validated = self.share
        if self.options.answers:
            self._write_answers()

    def _begin(self) -> tuple[State, dict[str, torch.Tensor]]:
        """Return what an earlier attempt left, or the model as it is."""
        # 1. Begin anew, unless an earlier attempt had the same inputs.
        described = {**self.request.model_dump(mode="json", exclude={"out_dir", "work_dir"}), **self._described()}
        files = [*weight_files(self.request.start_dir), *weight_files(self.request.original_dir)]
        key = request_key(described, files)
        saved = training_state.load(self.request.work_dir, key, State)
        if saved is None:
            shutil.rmtree(self.request.work_dir, ignore_errors=True)
            return State(key=key), self._copy()

        # 2. Else load where it was, and report its curve again.
        state, tensors = saved
        self._set(tensors["learned"])
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.progress.note(f"{state.step} of {self.options.steps} steps were done before: going on with the next.")
        for point in state.curve:
            self.progress.point(**point.model_dump())
        return state, tensors["best"]

    def _write_answers(self) -> None:
        """Replace the sequences to learn from by what the original writes from their beginnings on, or by what an
        earlier attempt has of it."""
        import torch

        # 1. Take those of an earlier attempt.
        path, length = self.request.work_dir / "answers.pt", self.split.training.shape[1]
        if self.state.curve and path.is_file():
            self.split = self.split._replace(training=torch.load(path, weights_only=True))
            return
        # 2. Let the original go on from the first part of each sequence.
        model = (
            self.teacher.model if self.teacher is not None else load(self.request.original_dir, self.request.device)[0]
        )
        begun = self.split.training[:, : max(1, length // BEGINNING)]
        written: list[list[int]] = []
        self.progress.note(f"The original writes the {len(begun)} sequences that are learned from.")
        for number, part in enumerate(torch.split(begun, ANSWERED)):
            if written and self.options.minutes is not None and self.share > ANSWERING:
                self.progress.note(
                    f"Its share of the minutes is over after {counted(len(written), 'sequence')}: it learns from these."
                )
                break
            sampling = Sampling(TEMPERATURE, length - begun.shape[1], self.request.seed * 1_000_003 + number)
            answers = generate(model, part.tolist(), (), sampling)
            written += [[*row, *answer.tokens] for row, answer in zip(part.tolist(), answers, strict=True)]
        # 3. Keep them for a later attempt.
        self.split = self.split._replace(training=torch.tensor(written))
        self.request.work_dir.mkdir(parents=True, exist_ok=True)
        with files.staged_file(path) as staged:
            torch.save(self.split.training, staged)

    @property
    def kind(self) -> str:
        """The word for the model that it began with."""
        return "quantized" if isinstance(self.options, RecoverQuantized) else "pruned"

    @property
    def share(self) -> float:
        """The share of the training that is over, by steps or by time."""
        steps = self.state.step / self.options.steps
        if self.options.minutes is None:
            return steps
        return max(steps, (time.monotonic() - self.began) / (60 * self.options.minutes))

    def _check_time(self) -> None:
        """Raise WorkError where the minutes end before there is a first result: known after the first validation."""
        minutes, past = self.options.minutes, (time.monotonic() - self.began) / 60
        if minutes is not None and self.state.step == 0 and past * 2 > minutes:
            raise WorkError(
                f"The first validation of the recovery ended after {past:.1f} of {counted(minutes, 'minute')}, so that "
                f"no step would be left: give `recover.minutes: {math.ceil(4 * past)}` or more."
            )

    def _copy(self) -> dict[str, torch.Tensor]:
        """Return copies of what is learned, by name."""
        return {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def _set(self, values: dict[str, torch.Tensor]) -> None:
        import torch

        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(values[name])

    def run(self) -> RecoverResult:
        # 1. Train from the model's own loss until the state says stop.
        if not self.state.curve:
            self._validate()
            self._check_time()
        while not self.state.stopped:
            self._step()
        # 2. Write the best state, or the model as it was if nothing was better.
        self._set(self.best)
        improved = self.state.best_step > 0
        if improved:
            self.learned.write(self.request.out_dir)
        else:
            shutil.copytree(self.request.start_dir, self.request.out_dir, dirs_exist_ok=True)
        self.progress.note(self._ended())
        return RecoverResult(
            improved=improved,
            best_step=self.state.best_step,
            steps=self.state.step,
            stopped=self.state.stopped,
            loss_before=self.state.curve[0].validation,
            loss_after=self.state.best.validation,
            curve=self.state.curve,
            **self._described(),
        )

    def _described(self) -> dict[str, Any]:
        data = {name: calibration.describe(tokens) for name, tokens in self.split._asdict().items()}
        return {"data": data, "versions": versions(), "learning_rate": self.highest}

    def _step(self) -> None:
        """Make one step; validate every `every` steps, and save the state at times."""
        # 1. One optimizer step at the rate of its time.
        state = self.state
        minutes = self.options.minutes
        share = rate(state.step, self.options.steps) if minutes is None else rate_at(self.share)
        for group, highest in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = highest * share
        training = self.split.training
        chosen = sequence_numbers(len(training), state.step, self.options.batch, self.request.seed)
        reverse = self.options.divergence == "reverse"
        loss = descend(self.optimizer, self._loss(training[chosen], reverse=reverse, half=True))
        state.step, state.summed, state.counted = state.step + 1, state.summed + loss, state.counted + 1
        # 2. Stop, validate or save.
        if not math.isfinite(state.summed):
            state.stopped = "not finite"
        elif self._is_validation_due():
            self._validate()
        elif time.monotonic() - self.saved > SAVED_EVERY_S:
            self._save()
        timed = self.options.minutes is not None
        self.progress.advance(round(time.monotonic() - self.began, 1) if timed else state.step, loss=loss)

    def _is_validation_due(self) -> bool:
        """Return whether the last step is followed by a validation."""
        if self.options.minutes is None:
            return self.state.step % self.every == 0 or self.state.step == self.options.steps
        affordable = VALIDATING * 60 * self.options.minutes / max(self.state.validation_seconds, 1e-6)
        points = max(FEWEST_TIMED, min(TIMED_VALIDATIONS, int(affordable)))
        return self.share >= 1 or int(points * self.share) > int(points * self.validated)

    def _validate(self) -> None:
        """Add a point to the curve: keep the best state, and stop after too many worse points."""
        # 1. Measure; a loss that is not finite ends the run.
        state, began = self.state, time.monotonic()
        validation = self._validation()
        training = state.summed / state.counted if state.counted else None
        first = not state.curve
        if first:
            state.validation_seconds = time.monotonic() - began
        if first and not math.isfinite(validation):
            less = "prune less" if self.kind == "pruned" else "use another method of quantization"
            raise WorkError(f"The {self.kind} model's output is not finite: {less}, or check the model's weights.")
        if not math.isfinite(validation):
            state.stopped = "not finite"
            return

        # 2. Keep what is learned if it is the best so far.
        better = first or validation < state.best.validation
        state.curve.append(Point(step=state.step, validation=validation, training=training))
        state.summed, state.counted, state.worse = 0.0, 0, 0 if better else state.worse + 1
        if better:
            state.best_step, self.best = state.step, self._copy()

        # 3. Stop after the last step, or too many points without gain.
        if state.step == self.options.steps:
            state.stopped = "steps"
        elif self.share >= 1:
            state.stopped = "minutes"
        elif state.worse >= self.options.patience:
            state.stopped = "patience"
        self.progress.point(**state.curve[-1].model_dump())
        self._save()
        self.validated = self.share

    def _save(self) -> None:
        tensors = {"learned": self._copy(), "best": self.best, "optimizer": self.optimizer.state_dict()}
        self.state.seconds = time.monotonic() - self.began
        training_state.save(self.request.work_dir, self.state, tensors)
        self.saved = time.monotonic()

    def _validation(self) -> float:
        import torch

        size, total = self.options.batch, 0.0
        with torch.no_grad():
            for part in torch.split(self.split.validation, size):
                total += float(self._loss(part)) * len(part)
        return total / len(self.split.validation)

    def _loss(self, tokens: torch.Tensor, *, reverse: bool = False, half: bool = False) -> torch.Tensor:
        """Compute the mean loss over positions of `tokens` [sequences, length], in nats per token.

        `reverse`: KL(model || original) rather than KL(original || model). `half`: the model's products are in
        bfloat16 where the hardware has it; the original's and the loss itself are in fp32.
        """
        import torch

        tokens = tokens.to(self.request.device)
        with half_precision(self.request.device, half):
            logits = self.model(tokens, use_cache=False).logits[:, :-1].flatten(0, 1)
        logits = logits.float()
        if self.teacher is None:
            return torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        target = self.teacher.logits(tokens)[:, :-1].flatten(0, 1).log_softmax(-1)
        own = logits.log_softmax(-1)
        below, above = (target, own) if reverse else (own, target)
        return torch.nn.functional.kl_div(below, above, reduction="batchmean", log_target=True)

    def _ended(self) -> str:
        state = self.state
        why = {
            "steps": "after all steps",
            "minutes": f"after {self.options.minutes} minutes",
            "patience": f"early, after {state.worse} validations without a better loss",
            "not finite": "since the loss was no longer finite",
        }[state.stopped]
        result = (
            f"step {state.best_step} is kept"
            if state.best_step
            else f"nothing was better than the {self.kind} model, which is kept"
        )
        return f"Recovery ended at step {state.step}, {why}; {result}.{self._advice()}"

    def _advice(self) -> str:
        """Return what may win back more: more time where the loss still fell, else more text where it was read often;
        empty where neither is known."""
        state, sequences = self.state, len(self.split.training)
        if state.best_step == state.step and state.stopped in {"steps", "minutes"}:
            return f" The validation loss was lowest at the end: more {state.stopped} may win back more."
        times = state.step * self.options.batch / sequences
        if times < OFTEN:
            return ""
        return f" Each of the {sequences} sequences was read {times:.1f} times: more text may win back more."


def versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONS}


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    """Make one optimizer step with the gradient norm cut to MOST_GRADIENT; return the loss before it."""
    import torch

    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    torch.nn.utils.clip_grad_norm_(parameters, MOST_GRADIENT)
    optimizer.step()
    return float(loss.detach())


def rate(step: int, steps: int) -> float:
    """Return the share of the learning rate at `step` (from 0): a linear rise over the warm-up, then a fall to zero."""
    warm = max(1, round(WARM_UP * steps))
    return (step + 1) / warm if step < warm else (steps - step) / max(1, steps - warm)


def rate_at(share: float) -> float:
    """Return the share of the learning rate where that share of the time is over: a rise, then a fall to zero."""
    return min(1.0, (share + WARM_UP / 10) / WARM_UP) if share < WARM_UP else max(0.0, (1 - share) / (1 - WARM_UP))
