"""The options of a recovery.

The short fine-tune after pruning or quantization that wins back some of the lost quality, and its wording.

Knows nothing of models (`needs/recovery_needs` does) and of how it is done (engines/native/recovery).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from backend.domain.figures import counted
from backend.domain.frozen import Frozen

NO_EXPERTS = "Recovery has no adapters for models made of experts: leave `recover` out."
SPARE_SEQUENCES = 12
"""The fewest sequences of the calibration text that calibration must leave over. A recovery validates on half of them,
and learns from the other half and from those that calibrated."""

VALIDATIONS, MOST_VALIDATION = 20, 16
"""Validations after the start, and the most sequences of each: their cost comes on top of the steps."""
TIMED_VALIDATIONS, FEWEST_TIMED = 10, 3
"""The most and the fewest validations after the start where minutes end the training: there they take from the
steps."""
MOST_STEPS = 10_000
BEGINNING = 4
"""With `answers` the original goes on from the first of so many parts of a sequence."""
ANSWERED = 32
"""Sequences that it writes at a time."""
KEPT_SEQUENCES = 256
"""The most sequences of which a teacher's last states are kept, so that one which comes again costs its head alone."""
SCALE_RATE = 16e-3
"""The usual learning rate of the factors of scales, which begin at one, is this / 2 to the power of the bits: so a step
moves the largest integers by as much of the distance between two points in any number of bits
(docs/decisions/0069)."""
ADAPTER_RATE = 12
"""The usual learning rate of adapters is this / (hidden size x rank): 3e-3 at rank 8 and a hidden size of 512, measured
on the starter and on SmolLM2-135M-Instruct (docs/decisions/0014-recovery.md). By 1 / width, as Adam's rate for a hidden
matrix goes (Yang et al. 2022, arXiv 2203.03466), and by 1 / rank, since the product of the factors is not divided by
it."""


class FineTune(Frozen):
    """The options that every recovery has.

    Written as `true` where nothing differs from the defaults, which docs/decisions/0014-recovery.md explains.
    """

    steps: int = Field(100, ge=1, le=MOST_STEPS)
    """The most steps; fewer where the validation loss stops falling. With `minutes` only where it is stated."""
    learning_rate: float | None = Field(None, gt=0, le=1)
    """The highest rate: it rises at first and falls to zero at the last step. Empty is the usual one."""
    batch: int = Field(4, ge=1, le=256)
    """Sequences a step."""
    patience: int = Field(5, ge=1, le=1000)
    """Validations without a better loss after which it stops; there are about twenty in all."""
    minutes: int | None = Field(None, ge=1, le=100_000)
    """The most minutes, the answers included; the learning rate then falls with the time. Empty: `steps` alone."""
    answers: bool = False
    """Learn from what the original itself writes, from the beginning of each sequence on, and not from the text."""
    divergence: Literal["forward", "reverse"] = "forward"
    """The KL divergence that is learned from. Forward, KL(original || model), keeps all that the original may say;
    reverse, KL(model || original), gives up what it rarely says (MiniLLM, Gu et al. 2023, arXiv 2306.08543, section
    2.1). Validation, by which the best step is chosen, is forward."""

    @model_validator(mode="before")
    @classmethod
    def _leave_steps_to_the_time(cls, data: Any) -> Any:
        timed = isinstance(data, dict) and data.get("minutes") is not None
        return {"steps": MOST_STEPS, **data} if timed else data

    @model_serializer(mode="plain")
    def _serialize(self) -> Any:
        fields = type(self).model_fields
        usual = {name: field.default for name, field in fields.items()}
        usual |= {"steps": MOST_STEPS} if self.minutes is not None else {}
        return {name: value for name, value in self if value != usual[name]} or True

    def all_options(self) -> dict[str, Any]:
        """Return every option, as an engine receives them."""
        return dict(self)


class Recover(FineTune):
    """The options after pruning: low-rank adapters are learned, and merged into the matrices."""

    rank: int = Field(8, ge=1, le=256)
    """Rank of the two factors that are learned for each pruned matrix."""
    teacher: bool = True
    """Learn what the original model says of each next token, rather than the text alone."""

    @model_validator(mode="after")
    def _check_divergence(self) -> Recover:
        if self.divergence == "reverse" and not self.teacher:
            raise ValueError("recover: `divergence` compares with the original, which `teacher: false` leaves out")
        return self


Learned = Literal["scales", "weights"]


class RecoverQuantized(FineTune):
    """The options after quantization (quantization-aware training): what is stored is itself learned."""

    teacher: ClassVar[bool] = True
    """The original teaches, always."""
    learn: Learned = "scales"
    """`scales`: the integers stay, and the scale of each group is learned (EfficientQAT, Chen et al. 2024, arXiv
    2407.11062, section 3.3). `weights`: the integers too, through the rounding (LSQ, Esser et al. 2019, arXiv
    1902.08153)."""


def adapter_rate(hidden_size: int, rank: int) -> float:
    """Return the highest learning rate of adapters where none is given."""
    return ADAPTER_RATE / (hidden_size * rank)


def scale_rate(bits: int) -> float:
    """Return the highest learning rate of factors of scales where none is given; `bits` of a stored integer."""
    return SCALE_RATE * 2.0**-bits


Recovery = Recover | RecoverQuantized
"""The options of a recovery after either."""


def read_recover(value: Any, kind: type[FineTune] = Recover) -> Any:
    """Return `recover:` as options of that kind: true for the defaults, false for none.

    Raises ValueError for anything but a boolean or a mapping.
    """
    if isinstance(value, bool):
        return kind() if value else None
    if value is not None and not isinstance(value, dict | kind):
        raise ValueError(f"`recover` is true, or a mapping such as {EXAMPLES[kind]}")
    return value


EXAMPLES: dict[type[FineTune], str] = {
    Recover: "{rank: 8, steps: 200}",
    RecoverQuantized: "{learn: scales, steps: 200}",
}


def title(step: Recovery) -> str:
    """Return the words of a plan for the recovery."""
    taught = "taught by the original" if step.teacher else "from text alone"
    taught += " on its own answers" if step.answers else ""
    taught += ", by the reverse divergence" if step.divergence == "reverse" else ""
    most = counted(step.steps, "step") if step.minutes is None else counted(step.minutes, "minute")
    if isinstance(step, Recover):
        return f"then recovery in at most {most} of rank {step.rank}, {taught}"
    return f"then recovery {LEARNED[step.learn]} in at most {most}, {taught}"


LEARNED = {"scales": "of the scales", "weights": "of weights and scales"}
"""Words for what a quantized model learns."""


def gain_sentence(quality: Mapping[str, Mapping[str, float]]) -> str:
    """Return a sentence on what the recovery gained.

    `quality` has the `perplexity` of the `original`, the `pruned` and the `recovered` weights; or of `quantized` ones
    the `kl_mean`, since a quantization may lower the perplexity by chance.
    """
    # 1. After a quantization.
    if "quantized" in quality:
        lost, left = (quality[name]["kl_mean"] for name in ("quantized", "recovered"))
        share = (lost - left) / lost if lost > 0 else 0.0
        won = f"recovery won back {share:.0%} of what quantization cost" if share > 0 else "recovery did not help"
        return f"Mean KL divergence is {lost:.4f} after quantization and {left:.4f} after recovery: {won}."
    # 2. After a pruning.
    before, pruned, after = (quality[name]["perplexity"] for name in ("original", "pruned", "recovered"))
    figures = f"Perplexity is {before:.2f} before pruning, {pruned:.2f} after pruning and {after:.2f} after recovery"
    if pruned <= before:
        return f"{figures}."
    share = (pruned - after) / (pruned - before)
    return (
        f"{figures}: recovery won back {share:.0%} of what pruning cost."
        if share > 0
        else f"{figures}: recovery did not help."
    )


def end_sentence(document: Mapping[str, Any], before: str = "pruned") -> str:
    """Return why and when the recovery ended, and which weights are used.

    `document` is the manifest's record of it; `before` names the weights that it began with.
    """
    done, planned = document["steps"], document["asked"]["steps"]
    why = {
        "minutes": f"It used its {document['asked'].get('minutes')} minutes for {counted(done, 'step')}",
        "steps": f"It made all {counted(planned, 'step')}",
        "patience": f"It stopped early, at step {done} of {planned}, since the validation loss no longer fell",
        "not finite": f"It stopped at step {done} of {planned}, since the loss was no longer finite",
    }[str(document["stopped"])]
    if not document["improved"]:
        return f"{why}. No step was better than the {before} model, so the {before} weights are kept as they were."
    return f"{why}; the weights of step {document['best_step']}, which had the lowest validation loss, are kept."
