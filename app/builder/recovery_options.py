"""The recovery of a prune or quantize step as options of the form: a switch and its settings. Pure: no widgets.

Their names have a dot, `recover.rank`, since they are one level deeper in the recipe.
"""

from __future__ import annotations

from typing import Any

from app.builder.option import Option
from backend.domain.recipe.recipe import Prune, Quantize

SWITCH = "recover"
COMMON = (
    Option(
        "recover.steps",
        "Recovery steps",
        "At most; it stops earlier where the validation loss no longer falls.",
        "whole",
        low=1,
        high=10_000,
    ),
    Option(
        "recover.learning_rate",
        "Learning rate",
        "At its highest; the usual one where empty. Lower it where the loss rises.",
        "rate",
        low=1e-6,
        high=1.0,
    ),
    Option(
        "recover.batch",
        "Sequences per step",
        "More make steps steadier, slower, and need more memory. With few minutes on a processor, 1 recovers more.",
        "whole",
        low=1,
        high=256,
    ),
    Option(
        "recover.patience",
        "Patience",
        "Validations without a lower loss after which it stops.",
        "whole",
        low=1,
        high=1000,
    ),
    Option(
        "recover.minutes",
        "Recovery minutes",
        "At most; the learning rate falls with the time. Empty: the steps alone decide.",
        "whole",
        low=1,
        high=100_000,
    ),
    Option(
        "recover.answers",
        "Its own answers",
        "Learn from what the original itself writes, from the beginning of each sequence on.",
        "flag",
    ),
    Option(
        "recover.divergence",
        "KL divergence",
        "forward keeps all that the original may say; reverse gives up what it rarely says, and sounds surer.",
        "choice",
        ("forward", "reverse"),
    ),
)
AFTER_PRUNING = (
    *COMMON,
    Option(
        "recover.rank",
        "Recovery rank",
        "Rank of the two factors learned for each matrix; a higher one can recover more.",
        "whole",
        low=1,
        high=256,
    ),
    Option(
        "recover.teacher",
        "Learn from the original",
        "Learn from the predictions of the original, which needs both models in memory.",
        "flag",
    ),
)
AFTER_QUANTIZATION = (
    *COMMON,
    Option(
        "recover.learn",
        "What is learned",
        "scales: the integers stay as they are. weights: they may change too, which needs more memory and steps.",
        "choice",
        ("scales", "weights"),
    ),
)
PRUNED_SWITCH = Option(
    SWITCH,
    "Recover",
    "A short fine-tune afterwards recovers part of the lost quality and changes no zero. Needs the whole model in "
    "memory.",
    "flag",
)
QUANTIZED_SWITCH = Option(
    SWITCH,
    "Recover",
    "Quantization-aware training: a short fine-tune afterwards, taught by the original, recovers part of the lost "
    "quality. Needs the whole model in memory.",
    "flag",
)


def settings(step: Any) -> tuple[Option, ...]:
    """Return the settings of the step's recovery; none if it has no recovery."""
    if not isinstance(step, Prune | Quantize) or step.recover is None:
        return ()
    return AFTER_PRUNING if isinstance(step, Prune) else AFTER_QUANTIZATION


def value(step: Any, name: str) -> Any:
    """Return the current value; the switch is a flag."""
    if name == SWITCH:
        return step.recover is not None
    return getattr(step.recover, name.removeprefix(f"{SWITCH}."))


def with_setting(step: Prune | Quantize, name: str, new: Any) -> Any:
    """Return the value of `recover` once `name` is `new`."""
    if name == SWITCH:
        return bool(new)
    options = step.recover.all_options() if step.recover else {}
    if name == f"{SWITCH}.minutes" and (new is None) != (step.recover is None or step.recover.minutes is None):
        options.pop("steps", None)  # the time decides then, or the usual steps again
    return {**options, name.removeprefix(f"{SWITCH}."): new}
