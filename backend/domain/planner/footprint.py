"""Memory of a target that a model takes.

One bar per target, of one device at the degree the planner would choose.

Pure arithmetic over `serving_memory`. Knows nothing of charts and of prices.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import parallel_layout, serving_memory, structure
from backend.domain.needs.serving_memory import DeviceMemory
from backend.domain.recipe.recipe import Recipe


class Footprint(NamedTuple):
    """The memory of a model on one kind of hardware. `names` are the targets that have it.

    `memory` is of one device, with all of them used as the planner's default does; where nothing fits, at the highest
    degree that divides the model. `replicas` of the model, each cut over that degree.
    """

    names: tuple[str, ...]
    device: Device
    fits: bool
    memory: DeviceMemory
    replicas: int = 1

    @property
    def used_bytes(self) -> int:
        """Weights, activations and the most that the runtime may take, on one device."""
        return self.memory.weights_per_device + self.memory.activations + self.memory.runtime[1]


def footprint(model: ModelFacts, recipe: Recipe, device: Device, names: tuple[str, ...]) -> Footprint:
    """Return the footprint.

    It fits where the weights and `serving_memory.required_cache_tokens` do, as in the planner's memory rule.
    """
    layout = parallel_layout.default_layout(
        model, recipe, device, tokens=serving_memory.required_cache_tokens(model, recipe)
    )
    if layout is not None:
        return Footprint(names, device, True, layout.memory, layout.replicas)
    degree = max(serving_memory.degrees(model, recipe, device), default=1)
    return Footprint(names, device, False, serving_memory.device_memory(model, recipe, device, degree))


def footprints(model: ModelFacts, recipe: Recipe, places: list[tuple[str, Device]]) -> list[Footprint]:
    """Return one footprint per kind of hardware, least memory first; targets with the same accelerators share it."""
    alike: dict[tuple[str, int, int], dict[str, Device]] = {}
    for name, device in places:
        alike.setdefault((device.name, device.units, device.memory_bytes), {})[name] = device
    model, recipe = structure.apply(model, recipe)
    rows = [footprint(model, recipe, list(devices.values())[-1], tuple(devices)) for devices in alike.values()]
    return sorted(rows, key=lambda devices: (devices.device.units * devices.device.memory_bytes, devices.names))
