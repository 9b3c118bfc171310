"""The layout in which the accelerators of a target share a model.

The model is cut over some of them (tensor parallel) and copied to the others (replicas).

Pure arithmetic over `serving_memory`. vLLM: --tensor-parallel-size and --data-parallel-size. Knows nothing of time and
of prices.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import serving_memory
from backend.domain.needs.serving_memory import DeviceMemory
from backend.domain.recipe.recipe import Recipe


class ParallelLayout(NamedTuple):
    """`replicas` of the model, each cut over `memory.tensor_parallel` of the `units`.

    `memory` is of one accelerator.
    """

    memory: DeviceMemory
    replicas: int
    units: int
    stages: int = 1
    """Pipeline stages of a replica."""

    @property
    def degree(self) -> int:
        return self.memory.tensor_parallel

    @property
    def idle(self) -> int:
        """Accelerators that are paid for and do nothing."""
        return self.units - self.replicas * self.degree * self.stages

    @property
    def words(self) -> str:
        """`tensor parallel 4`, `2 replicas at tensor parallel 2`, `4 replicas, one on each accelerator`, with what is
        idle."""
        cut = f"tensor parallel {self.degree}" if self.degree > 1 or self.stages == 1 else ""
        staged = f"{self.stages} pipeline stages" if self.stages > 1 else ""
        used = " in ".join(filter(None, (cut, staged)))
        if self.replicas > 1:
            alone = self.degree == self.stages == 1
            used = f"{self.replicas} replicas{', one on each accelerator' if alone else f' at {used}'}"
        return f"{used}, {self.idle} of {self.units} accelerators idle" if self.idle else used


def stated_layout(model: ModelFacts, recipe: Recipe, device: Device, draft: ModelFacts | None = None) -> ParallelLayout:
    """Return the layout of the recipe's own settings, whether it fits or not."""
    serving = recipe.serving
    memory = serving_memory.device_memory(model, recipe, device, serving.tensor_parallel, draft)
    return ParallelLayout(memory, serving.data_parallel or 1, device.units, serving.pipeline_parallel or 1)


def possible_layouts(
    model: ModelFacts, recipe: Recipe, device: Device, draft: ModelFacts | None = None, *, tokens: int = 1
) -> list[ParallelLayout]:
    """Return every degree at which the model and `tokens` of cache fit, lowest first, with as many replicas as fit."""
    rooms = (
        serving_memory.device_memory(model, recipe, device, degree, draft)
        for degree in serving_memory.degrees(model, recipe, device)
    )
    return [
        ParallelLayout(room, device.units // room.tensor_parallel, device.units) for room in rooms if room.holds(tokens)
    ]


def default_layout(
    model: ModelFacts, recipe: Recipe, device: Device, draft: ModelFacts | None = None, *, tokens: int = 1
) -> ParallelLayout | None:
    """Return the layout that uses all accelerators; None where nothing fits.

    A replica on each where one has room for the model, else the model cut over as many as divide it. The recipe's own
    degree where it states one (above 1) at which the model fits, and then one replica; its pipeline stages and copies
    where it states those.
    """
    # 1. What the recipe states.
    if recipe.serving.pipeline_parallel or recipe.serving.data_parallel:
        own = stated_layout(model, recipe, device, draft)
        return own if own.memory.holds(tokens) and own.idle >= 0 else None
    possible = possible_layouts(model, recipe, device, draft, tokens=tokens)
    stated_degree = recipe.serving.tensor_parallel
    stated = next((layout for layout in possible if layout.degree == stated_degree > 1), None)
    if stated is not None:
        return stated._replace(replicas=1)
    # 2. A replica on each accelerator, else the model cut over as many as possible.
    if possible and possible[0].degree == 1:
        return possible[0]
    return max(possible, key=lambda layout: layout.degree, default=None)
