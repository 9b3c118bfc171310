"""The plan of a compilation for Neuron as text: one line a field of the key, then what a core holds."""

from __future__ import annotations

from typing import Any

from backend.service.plans.compilations import CompilationPreview

GB = 1e9


def compilation_text(preview: CompilationPreview) -> str:
    """The key first, since it is what finds the result again."""
    plan = preview.plan
    price = f"{preview.price_per_hour:,.4g} USD" if preview.price_per_hour is not None else "unknown"
    fields = {name: value for name, value in plan.fields.items() if name != "stack"}
    held = f"{preview.weights_bytes / GB:.1f} GB of weights, {preview.cache_bytes / GB:.1f} GB of cache"
    runtime = f"up to {preview.runtime_bytes / GB:.1f} GB of program and scratchpad, of {preview.core_memory_bytes / GB:.1f} GB"
    rows = [
        ("key", preview.key),
        ("stack", f"{preview.stack} ({plan.stack})"),
        *((name.replace("_", " "), _shown(value)) for name, value in fields.items()),
        ("cores", f"{plan.tensor_parallel} of {preview.cores}"),
        ("a core holds", f"{held}, {runtime}"),
        ("price per hour", price),
    ]
    head = f"{plan.model} for {preview.target}: what would be compiled."
    return "\n".join([head, *(f"{name:18} {value}" for name, value in rows), *preview.notes, preview.lookup.sentence])


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
