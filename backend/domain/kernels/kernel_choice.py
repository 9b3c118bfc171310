"""Chooses the kernel that vLLM takes for a layer on a chip, in vLLM's own order, or says why none fits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from backend.domain.kernels import number_formats, table
from backend.domain.kernels.conditions import Chip, Conditions, Layer, StoredLayout, UnmetCondition, unmet_conditions
from backend.domain.kernels.table import Kernel


class KernelChoice(NamedTuple):
    """The chosen kernel. Where it is None, the other fields say why the nearest one does not take the layer."""

    kernel: Kernel | None
    title: str = ""
    unmet: UnmetCondition | None = None
    source: str = ""


@lru_cache(maxsize=4096)
def choose_kernel(
    layout: StoredLayout, layer: Layer, chip: Chip, packages: frozenset[str] = table.INSTALLED
) -> KernelChoice:
    """Return the first kernel in vLLM's order whose conditions hold, if it also computes correctly.

    A kernel of an optional package is never the only one: where the package is missing, or was never tried in that
    shape, the recipe would fail on the server. It is named where vLLM prefers it to one of its own.
    """
    # 1. Conditions of vLLM itself, before any kernel is chosen.
    for conditions, source in _entry(layout, layer, chip):
        lacking = unmet_conditions(conditions, layout, layer, chip, packages)
        if lacking:
            return KernelChoice(None, "vLLM", lacking[0], source)
    # 2. One of its own must work; then the first of all is taken.
    kernels = kernel_order(layout, layer, chip)
    own = _first([kernel for kernel in kernels if not kernel.optional], layout, layer, chip, packages)
    if own.kernel is None:
        return own
    return _first(kernels, layout, layer, chip, packages)


def kernel_order(layout: StoredLayout, layer: Layer, chip: Chip) -> tuple[Kernel, ...]:
    """Return the kernels that vLLM tries, in its order; none where it has none for that scheme there."""
    below = chip.capability is not None and chip.capability < table.FP8_ARITHMETIC
    eight = layout.scheme in {"fp8", "fp8-block"}
    which: table.List = "fp8-weights" if eight and chip.hardware == "cuda" and below else layout.scheme
    known = (table.EXPERTS, number_formats.EXPERTS) if layer.experts else (table.LINEAR, number_formats.LINEAR)
    kernels = next((rows[chip.hardware, which] for rows in known if (chip.hardware, which) in rows), ())
    return _humming_first(kernels) if chip.capability in table.HUMMING_FIRST else kernels


def _humming_first(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return the kernels with Humming directly before Marlin (utils/humming/priority.py, prioritize_humming)."""
    humming = tuple(kernel for kernel in kernels if kernel.title == "Humming")
    others = tuple(kernel for kernel in kernels if kernel.title != "Humming")
    marlin = next((place for place, kernel in enumerate(others) if kernel.title == "Marlin"), None)
    if marlin is None or not humming or kernels.index(humming[0]) < marlin:
        return kernels
    return others[:marlin] + humming + others[marlin:]


def preferred_kernel(
    layout: StoredLayout, layer: Layer, chip: Chip, packages: frozenset[str] = table.INSTALLED
) -> Kernel | None:
    """Return the kernel that vLLM takes by its own conditions, correct or not; None where it refuses the model."""
    tried = kernel_order(layout, layer, chip)
    return next((kernel for kernel in tried if not unmet_conditions(kernel.asks, layout, layer, chip, packages)), None)


def _entry(layout: StoredLayout, layer: Layer, chip: Chip) -> Iterator[tuple[Conditions, str]]:
    """Yield the conditions that vLLM checks before it looks for a kernel, each with its source."""
    for experts in (False, True) if layer.experts else (False,):
        entry = table.ENTRY.get((layout.scheme, experts)) or number_formats.ENTRY.get((layout.scheme, experts))
        if entry is not None:
            yield entry
    if layout.format == "autoawq" and chip.hardware == "cuda":
        yield table.AUTOAWQ


def _first(
    kernels: tuple[Kernel, ...] | list[Kernel], layout: StoredLayout, layer: Layer, chip: Chip, packages: frozenset[str]
) -> KernelChoice:
    """Return the first kernel that vLLM would take, if it computes correctly; else what the nearest one lacks."""
    # 1. vLLM takes the first whose conditions hold, whether it computes correctly or not.
    refused: list[tuple[Kernel, tuple[UnmetCondition, ...]]] = []
    for kernel in kernels:
        lacking = unmet_conditions(kernel.asks, layout, layer, chip, packages)
        if not lacking:
            wrong = unmet_conditions(kernel.needs, layout, layer, chip, packages)
            return KernelChoice(None, kernel.title, wrong[0], kernel.needs_source) if wrong else KernelChoice(kernel)
        refused.append((kernel, lacking))
    # 2. None: name the kernel that lacks least.
    if not refused:
        missing = UnmetCondition("bits", f"has no kernel for {layout.scheme} there")
        return KernelChoice(None, "vLLM", missing, f"{table.VLLM}, kernels/linear")
    kernel, lacking = min(refused, key=lambda refusal: _distance(refusal[1]))
    return KernelChoice(None, kernel.title, lacking[0], kernel.source)


def rounds_inputs(scheme: str | None, capability: tuple[int, int] | None) -> bool:
    """Return whether a GPU rounds the inputs of a scheme that has few bits for both; assumed of an unknown GPU."""
    lowest = number_formats.ARITHMETIC.get(str(scheme))
    return lowest is None or capability is None or capability >= lowest


FIXED = frozenset({"bits", "package", "processor", "compute-capability", "activations"})
"""Conditions that no other group size or recipe option of the same method meets."""


def _distance(lacking: tuple[UnmetCondition, ...]) -> tuple[bool, int]:
    """Return how far a kernel is from taking the layer: what can be changed comes before what cannot."""
    return any(failure.condition in FIXED for failure in lacking), len(lacking)
