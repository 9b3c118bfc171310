"""The work on one decoder layer: its groups of linears through the pipeline, and every tensor the new checkpoint has of
it.

Knows which linears share an input and what feeds them; leaves what is done to matrices to the pipeline's algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import ImpossibleStack
from backend.domain.model.shapes import divides
from backend.engines.native.group import Block, Linear, LinearProducer, NormProducer, Producer, Stats, Stored
from backend.engines.native.methods.pipelines import Pipeline
from backend.layered.families import Group, Layout
from backend.layered.outline import Outline

if TYPE_CHECKING:
    import torch


INPUT_SCALES: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "input_scale": lambda scales: max(scales, key=float).clone(),
    "input_global_scale": lambda scales: min(scales, key=float).clone(),
}
"""Stored scales of inputs, and the widest of several: NVFP4's divides."""


class Unit(NamedTuple):
    """A `families.Group` with its experts spelled out. Linears of one of `inputs` read the same tokens."""

    inputs: tuple[tuple[str, ...], ...]
    producer: str | None
    layout: Layout | None
    others: tuple[str, ...]
    group: str
    """Name of the group in allocations: the first linear, or the module of all experts, which vLLM fuses into one."""

    @property
    def linears(self) -> list[str]:
        return list(chain.from_iterable(self.inputs))


class Unquantized(NamedTuple):
    """A linear that stays 16-bit, and the reason."""

    name: str
    why: str


class LayerPlan(NamedTuple):
    """The work that every layer of a model gets."""

    outline: Outline
    units: Sequence[Unit]
    pipeline: Pipeline
    dtype: torch.dtype
    """The 16-bit type of what is stored."""

    @property
    def experts(self) -> int:
        """Return how many experts a layer has; 0 for a dense model."""
        names = self.outline.family.experts
        return len(self.outline.layers[0].get_submodule(names.path)) if names else 0


def units(group: Group, experts: int, module: str = "") -> list[Unit]:
    """Make one unit of a group; or one per expert, if each is fed by its own linear. `module` holds the experts.

    Of a group with experts, the linears that every token passes through (a shared expert) are one more input.
    """
    # 1. A group without experts is one input.
    if "*" not in group.linears[0]:
        return [Unit((group.linears,), group.producer, group.layout, group.others, group.linears[0])]

    def of_expert(number: int) -> tuple[str, ...]:
        return tuple(name.replace("*", str(number)) for name in group.linears if "*" in name)

    # 2. Experts that one norm feeds are one unit, with an input for each, since each reads tokens of its own.
    if group.producer is None or "*" not in group.producer:
        inputs = [of_expert(number) for number in range(experts)]
        shared = tuple(name for name in group.linears if "*" not in name)
        if shared:
            inputs.append(shared)
        return [Unit(tuple(inputs), group.producer, group.layout, group.others, module)]

    # 3. Experts that a linear of their own feeds are a unit each.
    per_expert = []
    for number in range(experts):
        producer = group.producer.replace("*", str(number))
        per_expert.append(Unit((of_expert(number),), producer, group.layout, group.others, module))
    return per_expert


def is_outside(unit: Unit, outline: Outline) -> bool:
    """Return whether a mixture's unit is none of its experts, shared ones included; False for a dense model."""
    experts = outline.family.experts
    mlp = experts.path.rpartition(".")[0] + "." if experts else ""
    return experts is not None and not unit.linears[0].startswith(mlp)


def plan_units(
    outline: Outline, pipeline: Pipeline, group_size: int | None, outside: Pipeline | None = None
) -> tuple[list[Unit], list[Unquantized]]:
    """Return the units that are optimized in every layer, and the linears that stay 16-bit with the reason.

    `outside` is the pipeline of linears outside of experts, where it is another. Raises ImpossibleStack where
    `group_size` does not divide an input.
    """
    # 1. Spell out the groups of the family with this model's experts.
    layer = outline.layers[0]
    names = outline.family.experts
    experts = len(layer.get_submodule(names.path)) if names else 0
    module = names.path if names else ""
    every: list[Unit] = []
    for group in outline.family.groups:
        every += units(group, experts, module)

    # 2. Divide them into those that are optimized and linears that stay 16-bit, with the reason.
    optimized, unquantized = [], []
    for unit in every:
        other = outside if outside is not None and is_outside(unit, outline) else None
        why = _unfit(layer, unit, (other or pipeline).multiple)
        unquantized += [Unquantized(name, why) for name in unit.linears if why]
        unquantized += [Unquantized(name, "decides which experts see a token and stays 16-bit") for name in unit.others]
        if not why:
            _check_group(layer, unit, group_size if other is None else None, outline)
            optimized.append(unit)
    return optimized, unquantized


def _unfit(layer: Any, unit: Unit, multiple: int) -> str | None:
    """Return why the unit's linears stay 16-bit; None if `multiple` divides all their sizes."""
    shapes = [tuple(layer.get_submodule(name).weight.shape) for name in unit.linears]
    if all(width % multiple == 0 for shape in shapes for width in shape):
        return None
    return (
        f"a size of {shapes} is not a multiple of {multiple}, which vLLM's kernels need of all linears of a fused group"
    )


def _check_group(layer: Any, unit: Unit, size: int | None, outline: Outline) -> None:
    width = layer.get_submodule(unit.linears[0]).in_features
    if size and not divides(size, width):
        name = outline.stored_name(0, unit.linears[0])
        raise ImpossibleStack(
            f"Group size {size} does not divide the input size {width} of {name}: choose one that does, such as 32."
        )


class LayerWork:
    """Optimizes one filled layer; `stats` of its inputs are by the path of the first linear that reads each."""

    def __init__(
        self, number: int, plan: LayerPlan, stats: Mapping[str, Stats], others: Mapping[str, Pipeline] | None = None
    ) -> None:
        # 1. What is done to it.
        self.number = number
        self.outline, self.units, self.pipeline, self.dtype = plan
        self.others = others or {}
        """Pipelines of groups, by name, that differ from `pipeline`."""

        # 2. Its linears, with the statistics of what each reads.
        self.layer = self.outline.layers[number]
        self.linears: dict[str, Linear] = {}
        for unit in self.units:
            for names in unit.inputs:
                self.linears |= {name: self._linear(name, stats[names[0]]) for name in names}

        # 3. What becomes of it.
        self.replaced: dict[str, dict[str, torch.Tensor]] = {}
        """16-bit tensors that something was folded into, by module."""
        self.stored: dict[str, Stored] = {}

    def _linear(self, name: str, stats: Stats) -> Linear:
        import torch

        weight = self.layer.get_submodule(name).weight.detach()
        ones = torch.ones(sum(weight.shape), device=weight.device)
        rows, columns = ones[: len(weight)], ones[len(weight) :]
        return Linear(self.outline.stored_name(self.number, name), weight, weight, rows, columns, stats)

    def run(self, block: Block | None = None) -> list[dict[str, Any]]:
        """Prune, scale, round; return what the result says of each linear. `block`: the layer with its text, which a
        learner of the pipeline needs.

        Groups fed by a linear are scaled first, so that their scales are in that linear's rows when its own group is
        searched.
        """
        # 1. Prune each weight [out, in].
        pruner = self.pipeline.pruner
        if pruner is not None:
            for linear in self.linears.values():
                linear.weight = pruner.prune(linear)
        # 2. Find scales [in] for each unit and fold them into what feeds it.
        for unit in reversed(self.units):
            self._scale(unit)
        # 3. Round the linears of each input together: they share its statistics. What is learned comes last, when the
        # layer has all other linears as they are stored.
        learned: list[dict[str, Linear]] = []
        for unit in self.units:
            pipeline = self._pipeline_of(unit)
            for names in unit.inputs:
                linears = {name: self.linears[name] for name in names}
                if pipeline.learner is not None and block is not None:
                    learned.append(linears)
                    continue
                results = pipeline.rounder.store(list(linears.values()))
                self.stored |= dict(zip(names, results, strict=True))
        if learned and block is not None and self.pipeline.learner is not None:
            self.apply()
            self.stored |= self.pipeline.learner.learn(learned, block, self.number)
        # 4. Give experts that no token reached the input scales of those that some did.
        self._scale_unseen()
        return [{"name": self.linears[name].name, **stored.report} for name, stored in self.stored.items()]

    def unseen_experts(self) -> set[str]:
        """Return the experts that no token of the calibration text reached, by their paths in the layer."""
        experts = self.outline.family.experts
        if experts is None:
            return set()
        begins = f"{experts.path}."
        unseen = [name for name, linear in self.linears.items() if linear.stats.tokens == 0 and name.startswith(begins)]
        return {begins + name.removeprefix(begins).partition(".")[0] for name in unseen}

    def _scale_unseen(self) -> None:
        """Replace the stored input scales of unseen experts by the widest of the same linear in the others."""
        unseen = self.unseen_experts()
        for name, stored in self.stored.items():
            expert, _, linear = name.rpartition(".")
            if expert not in unseen:
                continue
            for key, widest in INPUT_SCALES.items():
                others = [
                    other.tensors[key]
                    for path, other in self.stored.items()
                    if path.rpartition(".")[2] == linear
                    and key in other.tensors
                    and path.rpartition(".")[0] not in unseen
                ]
                if key in stored.tensors and others:
                    stored.tensors[key] = widest(others)

    def _pipeline_of(self, unit: Unit) -> Pipeline:
        return self.others.get(unit.group, self.pipeline)

    def _scale(self, unit: Unit) -> None:
        """Find the scales of a unit's input, and fold them into what feeds it."""
        producer, scaler = self._producer(unit), self._pipeline_of(unit).scaler
        if producer is None or scaler is None:
            return
        members = [self.linears[name] for name in unit.linears]
        columns = scaler.scales(members, producer)
        for member in members:
            member.columns = columns
        if isinstance(producer, LinearProducer):
            self.linears[str(unit.producer)].rows = producer.rows(columns)
        else:
            self._fold(str(unit.producer), producer, columns, unit.others)

    def _producer(self, unit: Unit) -> Producer | None:
        """Return what scales can be folded into; None where they cannot: nothing linear, or a linear that stays
        16-bit."""
        if unit.producer is None:
            return None
        weight = self.layer.get_submodule(unit.producer).weight.detach()
        if unit.layout is None:
            return NormProducer(weight, self.dtype, self.outline.family.norm_offset)
        index = unit.layout(self.outline.config).to(weight.device)
        fits = unit.producer in self.linears and len(index) == self.linears[unit.linears[0]].weight.shape[1]
        return LinearProducer(index, len(weight)) if fits else None

    def _fold(self, name: str, norm: NormProducer, columns: torch.Tensor, others: Sequence[str]) -> None:
        """Fold scales [in] into a norm; `others`, which read it too and stay 16-bit, get them in their columns."""
        module = self.layer.get_submodule(name)
        self.replaced[name] = {"weight": norm.fold(columns)}
        if getattr(module, "bias", None) is not None:
            self.replaced[name]["bias"] = (module.bias / columns).to(self.dtype)
        for other in others:
            self.replaced[other] = {"weight": (self.layer.get_submodule(other).weight * columns).to(self.dtype)}

    def apply(self) -> None:
        """Let the layer compute what its stored form will."""
        for name, stored in self.stored.items():
            self.layer.get_submodule(name).weight.data.copy_(stored.effective)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor that the new checkpoint has of this layer, by its name there."""
        # 1. What the layer holds: stored form of quantized linears, 16-bit tensors otherwise.
        state = self.layer.state_dict()
        carried = []
        for name, path in self.outline.stored_names(self.number).items():
            module, _, local = path.rpartition(".")
            if path not in state:
                carried.append(name)
            elif module not in self.stored:
                yield name, self._unchanged(module, local, state[path])
            elif local == "weight":
                prefix = name.removesuffix("weight")
                yield from (
                    (prefix + key, self._turned(key, tensor)) for key, tensor in self.stored[module].tensors.items()
                )
            else:
                yield name, (state[path] / self.linears[module].rows).to(self.dtype)
        # 2. The scales of the KV cache, and tensors that the layer does not hold.
        yield from self._cache_scales()
        for name, tensor in self.outline.source.read(carried):
            yield name, tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _cache_scales(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the scales of the layer's keys and values, if the pipeline makes any."""
        extent = self.outline.cache.extents.get(self.number)
        if self.pipeline.cache is not None and extent is not None:
            prefix = self.outline.stored_name(self.number, self.outline.family.attention)
            yield from ((f"{prefix}.{key}", tensor) for key, tensor in self.pipeline.cache(extent).items())

    def _unchanged(self, module: str, local: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a 16-bit tensor of the layer, with what was folded into it, as the family stores it."""
        import torch

        tensor = self.replaced.get(module, {}).get(local, tensor).to(self.dtype)
        return self._turned(local, tensor) if isinstance(self.layer.get_submodule(module), torch.nn.Linear) else tensor

    def _turned(self, local: str, weight: torch.Tensor) -> torch.Tensor:
        """A linear's weight the way round the family stores it; packed weights are [out, in] everywhere."""
        return weight.T.contiguous() if self.outline.family.transposed and local == "weight" else weight
