"""Targets: where a recipe is to run, as a person writes it and what that means.

`local`, `local:cpu`, `local:gpu0,1`, `local:neuron` are this machine; `ml.*` is our engines on that instance;
`accelerator:NAME` one card, for planning; `sagemaker:ml.*` the managed toolkit; `neuron:ml.*` a compilation for that
instance, `neuron:NAME` for one accelerator; `auto` the cheapest instance that will do. Nothing here reads this
machine's hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from backend.domain.errors import InvalidRecipe
from backend.domain.machine.device import Accelerator, Device, Instance, card_device, instance_device
from backend.domain.similar_names import nearest

TargetKind = Literal["local", "instance", "accelerator", "sagemaker", "neuron", "auto"]
LOCAL_CPU, LOCAL_NEURON = "local:cpu", "local:neuron"
LOCAL = ("local", LOCAL_CPU, "local:gpu0", LOCAL_NEURON)
GPUS = re.compile(r"local:gpu(\d+(?:,\d+)*)$")
NO_TRN3 = (
    "No source names a SageMaker instance with Trainium3 (botocore 1.44.5 has none), nor the size of one server of it: "
    "plan for one accelerator with `neuron:trainium3`, or use `local:neuron` on such a machine."
)


class Target(NamedTuple):
    """A target with its hardware. `instance` is set for `ml.*`, `sagemaker:ml.*` and `neuron:ml.*`."""

    name: str
    kind: TargetKind
    device: Device
    instance: Instance | None = None

    @property
    def price_per_hour(self) -> float | None:
        """USD, on demand; None where nobody publishes it."""
        return self.instance.sagemaker_usd_per_hour if self.instance else None

    @property
    def discount(self) -> float:
        """The share that is off that price already."""
        return self.instance.discount if self.instance else 0.0


class HardwareTables(NamedTuple):
    """The bundled rows, by name."""

    accelerators: Mapping[str, Accelerator]
    instances: Mapping[str, Instance]

    def device(self, instance: Instance) -> Device:
        return instance_device(instance, self.accelerators[instance.accelerator])

    def targets(self, managed: bool = False) -> list[Target]:
        """Return a target for every instance, in the data's order."""
        return [self._target(instance, managed) for instance in self.instances.values()]

    def _target(self, instance: Instance, managed: bool) -> Target:
        kind: TargetKind = "sagemaker" if managed else "instance"
        return Target(target_name(kind, instance.name), kind, self.device(instance), instance)

    def find(self, name: str) -> Target | None:
        """Return the planning target of that name; None for `local...` and `auto`. Raises InvalidRecipe for an unknown
        one."""
        # 1. Names that are no planning target.
        if name == "auto" or name in LOCAL or GPUS.match(name):
            return None
        # 2. Instances of AWS.
        prefix, _, rest = name.partition(":")
        if not rest and name in self.instances:
            return self._target(self.instances[name], managed=False)
        if prefix == "sagemaker" and rest in self.instances:
            return self._target(self.instances[rest], managed=True)
        if prefix == "neuron" and rest in self.neuron:
            row = self.instances[rest]
            return Target(name, "neuron", self.device(row), row)
        # 3. Single accelerators.
        card = self._card(rest) if prefix in {"neuron", "accelerator"} else None
        if prefix == "neuron" and card is not None and card.hardware == "neuron":
            return Target(target_name("neuron", slug(card.name)), "neuron", card_device(card))
        if prefix == "neuron" and "trn3" in rest:
            raise InvalidRecipe(NO_TRN3)
        if prefix == "accelerator" and card is not None:
            return Target(target_name("accelerator", slug(card.name)), "accelerator", card_device(card))
        raise InvalidRecipe(self._unknown(name))

    @property
    def neuron(self) -> list[str]:
        """Return the instances with Inferentia or Trainium."""
        return [name for name, row in self.instances.items() if self.accelerators[row.accelerator].hardware == "neuron"]

    def _card(self, name: str) -> Accelerator | None:
        return next((card for card in self.accelerators.values() if slug(card.name) == slug(name)), None)

    def _unknown(self, name: str) -> str:
        near = ", ".join(f"`{other}`" for other in nearest(name, self.names()))
        return f"There is no target `{name[:80]}`: the nearest are {near}."

    def names(self) -> list[str]:
        cards = [target_name("accelerator", slug(card)) for card in self.accelerators]
        return [
            "auto",
            *LOCAL,
            *self.instances,
            *cards,
            *(target_name("sagemaker", name) for name in self.instances),
            *(target_name("neuron", name) for name in self.neuron),
        ]


def target_kind(name: str) -> TargetKind:
    """Return the kind of target that a name means, by its prefix; hardware of that name may not exist."""
    prefix = name.partition(":")[0]
    if prefix in {"local", "auto", "accelerator", "sagemaker", "neuron"}:
        return cast("TargetKind", prefix)
    return "instance"


def target_name(kind: TargetKind, hardware: str) -> str:
    """Return the name of the target of that kind on an instance, a card by its `slug`, or a part of this machine."""
    return hardware if kind == "instance" else f"{kind}:{hardware}"


def hardware_name(name: str) -> str:
    """Return the hardware that a target's name ends with: `ml.g6.12xlarge` of `sagemaker:ml.g6.12xlarge`."""
    return name.rpartition(":")[2]


def slug(name: str) -> str:
    """Return the name in small letters without separators: `RTX 4090` and `rtx4090` are the same card."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def gpu_numbers(name: str) -> tuple[int, ...] | None:
    """Return the GPUs that `local:gpu0,1` names; None for another target."""
    match = GPUS.match(name)
    return tuple(dict.fromkeys(int(number) for number in match[1].split(","))) if match else None
