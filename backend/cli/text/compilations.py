"""The plan of a compilation for Neuron as text: one line a field of the key, then what a core holds."""

from __future__ import annotations

from typing import Any

from backend.service.plans.compilations import CompilationPreview

GB = 1e9


def compilation_text(found: CompilationPreview) -> str:
    """The key first, since it is what finds the result again."""
    plan = found.plan
    price = f"{found.price_per_hour:,.4g} USD" if found.price_per_hour is not None else "unknown"
    fields = {name: value for name, value in plan.fields.items() if name != "stack"}
    held = f"{found.weights_bytes / GB:.1f} GB of weights, {found.cache_bytes / GB:.1f} GB of cache"
    runtime = f"up to {found.runtime_bytes / GB:.1f} GB of program and scratchpad, of {found.core_memory_bytes / GB:.1f} GB"
    rows = [
        ("key", found.key),
        ("stack", f"{found.stack} ({plan.stack})"),
        *((name.replace("_", " "), _shown(value)) for name, value in fields.items()),
        ("cores", f"{plan.tensor_parallel} of {found.cores}"),
        ("a core holds", f"{held}, {runtime}"),
        ("price per hour", price),
    ]
    head = f"{plan.model} for {found.target}: what would be compiled."
    return "\n".join([head, *(f"{name:18} {value}" for name, value in rows), *found.notes, found.lookup.sentence])


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
