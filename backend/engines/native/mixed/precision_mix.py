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
from backend.engines.native.layer_work import Unit
from backend.engines.native.methods import pipelines
from backend.engines.native.methods.pipelines import Pipeline
from backend.layered.outline import Outline

if TYPE_CHECKING:
    import torch


class PrecisionMix:
    """`request.precisions` against the groups that the model has. Raises ImpossibleStack for a group it has not."""

    def __init__(self, request: QuantizeRequest, outline: Outline, plan: Sequence[Unit], dtype: torch.dtype) -> None:
        self.outline, self.plan, self.precisions = outline, plan, request.precisions
        self.unmixed = pipelines.pipeline_at(request, SIXTEEN, dtype)
        """The pipeline whose config is written if no group uses the request's own."""
        self.pipelines = {
            precision: pipelines.pipeline_at(request, precision, dtype) for precision in set(self.precisions.values())
        }
        self.groups = {
            outline.stored_name(number, unit.group): (number, unit.group)
            for number in range(outline.count)
            for unit in plan
        }
        unknown = self.precisions.keys() - self.groups.keys()
        if unknown:
            raise ImpossibleStack(f"The model has no group {min(unknown)!r} that could get a precision of its own.")

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
        """A layer's reports, with the precision of each linear that got another one than the request's own."""
        names = {
            self.outline.stored_name(number, linear): precision.name
            for unit in self.plan
            if (precision := self._layers[number].get(unit.group))
            for linear in unit.linears
        }
        return [
            report | ({"precision": names[report["name"]]} if report["name"] in names else {}) for report in reports
        ]

    def names(self, precision: Precision, *, inside: bool) -> list[str]:
        """The linears that get it, as checkpoints have their names; or as transformers calls the modules (`inside`)."""
        root = self.outline.family.layers
        return [
            f"{root}.{number}.{linear}" if inside else self.outline.stored_name(number, linear)
            for number, layer in enumerate(self._layers)
            for unit in self.plan
            if layer.get(unit.group) == precision
            for linear in unit.linears
        ]

    def sixteen_bit_linears(self, *, inside: bool = False) -> list[str]:
        """The linears that stay 16-bit though they could be quantized."""
        every = [precision for precision in self.pipelines if precision.method is None]
        return [name for precision in every for name in self.names(precision, inside=inside)]

    def config(self, pipeline: Pipeline, ignored: list[str]) -> dict[str, Any] | None:
        """`quantization_config`; `pipeline` is what the other groups go through, where there are any."""
        others = []
        for precision in sorted(self.pipelines, key=lambda each: (each.bits, each.name)):
            rounding = self.pipelines[precision].rounding
            if rounding is not None:
                both = [*self.names(precision, inside=False), *self.names(precision, inside=True)]
                others.append((rounding, list(dict.fromkeys(both))))
        rest = self.unmixed if self.groups and self.precisions.keys() == self.groups.keys() else pipeline
        return rest.config(ignored, others)
