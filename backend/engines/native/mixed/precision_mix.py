"""A checkpoint of several precisions: the pipeline of each group, and the `quantization_config`.

Each precision is a pipeline of its own, made by the method it names. Knows nothing of how the precisions were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack
from backend.domain.recipe.precision import SIXTEEN, Precision
from backend.engines.base import QuantizeRequest
from backend.engines.native.layer_work import Unit, is_outside
from backend.engines.native.methods import pipelines
from backend.engines.native.methods.pipelines import Pipeline
from backend.layered.outline import Outline

if TYPE_CHECKING:
    import torch


def outside_precisions(request: QuantizeRequest, outline: Outline, plan: Sequence[Unit]) -> dict[str, Precision]:
    """Return the precision of each group outside of the experts, by its name; nothing where they get the request's."""
    precision = pipelines.outside_precision(request)
    if precision is None:
        return {}
    groups = [unit.group for unit in plan if is_outside(unit, outline)]
    return {outline.stored_name(number, group): precision for number in range(outline.count) for group in groups}


class PrecisionMix:
    """Assigns `request.precisions` to the groups of the model. Raises ImpossibleStack for a group it has not."""

    def __init__(self, request: QuantizeRequest, outline: Outline, plan: Sequence[Unit], dtype: torch.dtype) -> None:
        self.outline, self.plan = outline, plan
        self.precisions = outside_precisions(request, outline, plan) | request.precisions
        self.outside = request.outside_experts is not None
        self.unmixed = pipelines.pipeline_at(request, SIXTEEN, dtype)
        """The pipeline whose config is written if no group uses the request's own."""
        self.pipelines = {
            precision: pipelines.pipeline_at(request, precision, dtype) for precision in set(self.precisions.values())
        }
        self.groups: dict[str, tuple[int, str]] = {}
        """Layer and local name of each group, by its name in allocations."""
        for number in range(outline.count):
            for unit in plan:
                self.groups[outline.stored_name(number, unit.group)] = (number, unit.group)
        unknown = self.precisions.keys() - self.groups.keys()
        if unknown:
            raise ImpossibleStack(f"The model has no group {min(unknown)!r} that could get a precision of its own.")

    @property
    def sixteen_bit_reason(self) -> str:
        """Say why linears stay 16-bit that could be quantized."""
        return "outside of the experts" if self.outside else "kept at 16 bits by the allocation"

    def of_layer(self, number: int) -> dict[str, Pipeline]:
        """Return the pipelines of a layer's groups that differ, by name."""
        return {local: self.pipelines[precision] for local, precision in self._layers[number].items()}

    @cached_property
    def _layers(self) -> list[dict[str, Precision]]:
        precisions: list[dict[str, Precision]] = [{} for _ in range(self.outline.count)]
        for name, precision in self.precisions.items():
            number, local = self.groups[name]
            precisions[number][local] = precision
        return precisions

    def with_precisions(self, number: int, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add to a layer's reports the precision of each linear that has another one than the request's own."""
        names: dict[str, str] = {}
        for unit in self.plan:
            precision = self._layers[number].get(unit.group)
            if precision is not None:
                names |= {self.outline.stored_name(number, linear): precision.name for linear in unit.linears}
        return [
            report | {"precision": names[report["name"]]} if report["name"] in names else report for report in reports
        ]

    def names(self, precision: Precision, *, inside: bool) -> list[str]:
        """Return the linears that get it, by their names in checkpoints; or in transformers' modules (`inside`)."""
        names: list[str] = []
        for number, layer in enumerate(self._layers):
            for unit in self.plan:
                if layer.get(unit.group) != precision:
                    continue
                if inside:
                    names += [f"{self.outline.family.layers}.{number}.{linear}" for linear in unit.linears]
                else:
                    names += [self.outline.stored_name(number, linear) for linear in unit.linears]
        return names

    def sixteen_bit_linears(self, *, inside: bool = False) -> list[str]:
        """Return the linears that stay 16-bit though they could be quantized."""
        names: list[str] = []
        for precision in self.pipelines:
            if precision.method is None:
                names += self.names(precision, inside=inside)
        return names

    def config(self, pipeline: Pipeline, ignored: list[str]) -> dict[str, Any] | None:
        """Return `quantization_config`; `pipeline` is that of the other groups, if there are any."""
        others = []
        for precision in sorted(self.pipelines, key=lambda precision: (precision.bits, precision.name)):
            rounding = self.pipelines[precision].rounding
            if rounding is not None:
                both = [*self.names(precision, inside=False), *self.names(precision, inside=True)]
                others.append((rounding, list(dict.fromkeys(both))))
        rest = self.unmixed if self.groups and self.precisions.keys() == self.groups.keys() else pipeline
        return rest.config(ignored, others)
