"""The facts about a target that the rules read, and the reason that a rule gives."""

from __future__ import annotations

from typing import Literal

from backend.domain.frozen import Frozen
from backend.domain.machine.device import Device, Hardware
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe.recipe import Recipe, Speculate

Place = Literal["local", "planned", "managed", "neuron"]
"""`local`: this machine. `planned`: our engines on hardware that is not here. `managed`: the SageMaker toolkit.
`neuron`: compiled by our Neuron engine, with or without the device at hand."""


MEMORY = "memory"
"""The rule of memory: a recipe that fails by it alone is valid but too large."""


class Reason(Frozen):
    """Why a recipe is refused. `source` is the formula or the document (with its version or section) that says so."""

    rule: str
    message: str
    source: str
    brief: str = ""
    """The reason in short words that many recipes share; empty where there are none."""

    @property
    def short(self) -> str:
        return self.brief or self.message


class TargetFacts(Frozen):
    """The facts besides the model: the hardware, the resolved draft, and whether a C++ compiler exists.

    `device` is None where its size is not known. `provided_draft`: the managed toolkit brings a draft of its own.
    """

    hardware: Hardware = "cpu"
    draft: ModelFacts | None = None
    compiler: bool = True
    place: Place = "local"
    any_degree: bool = False
    """On this machine, a model may be shared by as many devices as it needs, whatever the recipe's own degree."""
    device: Device | None = None
    instance: str | None = None
    family: str | None = None
    optimization_job: bool = False
    provided_draft: bool = False
    ram_bytes: int | None = None
    attached: bool = False
    """The devices of a Neuron target are on this machine."""
    proposers: tuple[str, ...] | None = None
    """Modules in the folder of users' proposers; None where no folder is configured."""
    suffixes: bool = False
    """The serve environment has the library of suffix decoding."""
    features: tuple[str, ...] | None = None
    """Instruction sets of the processor that serves, where it is one and they are known."""
    cores: int | None = None
    """Cores of this machine that a server may use; None for other machines."""

    @property
    def where(self) -> str:
        """The target's name in a sentence."""
        return self.instance or (self.device.name if self.device and self.place != "local" else "this machine")

    def serving_draft(self, recipe: Recipe) -> ModelFacts | None:
        """Return the draft that is in memory beside the model; None if the recipe has none."""
        step = recipe.step("speculate")
        return self.draft if isinstance(step, Speculate) and step.drafts else None
