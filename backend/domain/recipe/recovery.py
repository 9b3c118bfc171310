"""The options of a recovery.

The short fine-tune after pruning that wins back some of the lost quality, and its wording.

Knows nothing of models (`needs/recovery_needs` does) and of how it is done (engines/native/recovery).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_serializer, model_validator

from backend.domain.frozen import Frozen

NO_EXPERTS = "Recovery has no adapters for models made of experts: leave `recover` out."
SPARE_SEQUENCES = 12
"""The fewest sequences of calibration text that must be left for the recovery: most to learn from, some to stop by."""

VALIDATIONS, MOST_VALIDATION = 20, 16
"""Validations after the start, and the most sequences of each: their cost comes on top of the steps."""
TIMED_VALIDATIONS = 10
"""Validations after the start where minutes end the training: there they take from the steps."""
MOST_STEPS = 10_000
WIDE_RATE = 1.5
"""Measured on the starter, 3e-3 at its hidden size of 512, and from there by 1 / width, as Adam's rate for a hidden
matrix goes (Yang et al. 2022, arXiv 2203.03466): 3.7e-4 at 4096, where LoRA is usually trained with 1e-4 to 3e-4."""


class Recover(Frozen):
    """The options.

    Written as `true` where nothing differs from the defaults, which docs/decisions/0014-recovery.md explains.
    """

    rank: int = Field(8, ge=1, le=256)
    """Rank of the two factors that are learned for each pruned matrix."""
    steps: int = Field(100, ge=1, le=MOST_STEPS)
    """The most steps; fewer where the validation loss stops falling. With `minutes` only where it is stated."""
    learning_rate: float | None = Field(None, gt=0, le=1)
    """The highest rate: it rises at first and falls to zero at the last step. Empty is `WIDE_RATE` / the model's hidden
    size."""
    batch: int = Field(4, ge=1, le=256)
    """Sequences a step."""
    patience: int = Field(5, ge=1, le=1000)
    """Validations without a better loss after which it stops; there are about twenty in all."""
    teacher: bool = True
    """Learn what the original model says of each next token, rather than the text alone."""
    minutes: int | None = Field(None, ge=1, le=100_000)
    """The most minutes, the answers included; the learning rate then falls with the time. Empty: `steps` alone."""
    answers: bool = False
    """Learn from what the original itself writes, from the beginning of each sequence on, and not from the text."""

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


def read_recover(value: Any) -> Any:
    """Return `recover:` as options: true for the defaults, false for none.

    Raises ValueError for anything but a boolean or a mapping.
    """
    if isinstance(value, bool):
        return Recover() if value else None
    if value is not None and not isinstance(value, dict | Recover):
        raise ValueError("`recover` is true, or a mapping such as {rank: 8, steps: 200}")
    return value


def title(step: Recover) -> str:
    """Return the words of a plan for the recovery."""
    taught = "taught by the original" if step.teacher else "from text alone"
    taught += " on its own answers" if step.answers else ""
    most = f"{step.steps} steps" if step.minutes is None else f"{step.minutes} minutes"
    return f"then recovery in at most {most} of rank {step.rank}, {taught}"


def gain_sentence(quality: Mapping[str, Mapping[str, float]]) -> str:
    """Return a sentence on what the recovery gained.

    `quality` has the `perplexity` of the `original`, the `pruned` and the `recovered` weights.
    """
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


def end_sentence(document: Mapping[str, Any]) -> str:
    """Return why and when the recovery ended, and which weights are used. `document` is the manifest's `recovery`."""
    done, planned = document["steps"], document["asked"]["steps"]
    why = {
        "minutes": f"It used its {document['asked'].get('minutes')} minutes for {done} steps",
        "steps": f"It made all {planned} steps",
        "patience": f"It stopped early, at step {done} of {planned}, since the validation loss no longer fell",
        "not finite": f"It stopped at step {done} of {planned}, since the loss was no longer finite",
    }[str(document["stopped"])]
    if not document["improved"]:
        return f"{why}. No step was better than the pruned model, so the pruned weights are kept as they were."
    return f"{why}; the weights of step {document['best_step']}, which had the lowest validation loss, are kept."
