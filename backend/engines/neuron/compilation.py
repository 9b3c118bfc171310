"""Request and result of a compilation for Neuron, and its environment variables. Knows no stack."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from backend.domain.errors import WorkError
from backend.domain.frozen import Frozen
from backend.domain.neuron.compile_plan import CompilePlan

PROBE_TOKENS = 32
"""Generated on a device to show that what was compiled loads and runs there."""


class CompileRequest(Frozen):
    """One compilation. `out_dir` exists and is empty; `cache_dir` is neuronx-cc's own cache of graphs, shared by
    compilations."""

    plan: CompilePlan
    model_dir: Path
    draft_dir: Path | None = None
    out_dir: Path
    cache_dir: Path
    device: bool = False
    """The job has the Neuron device that is attached: the result is loaded there, on as many cores as its degree."""


class CompileResult(Frozen):
    """The result of a compilation."""

    versions: dict[str, str]
    """Versions of the vendor's packages, by name."""
    graphs: int
    """Files with compiled graphs."""
    proof: dict[str, Any] = Field(default_factory=dict)
    """Results of the check on a device; empty without one."""


def environment(request: CompileRequest, **more: str) -> None:
    """Set what the compiler reads, in this process, before any of the vendor's packages is imported."""
    if request.device:
        more["NEURON_RT_NUM_CORES"] = str(request.plan.tensor_parallel)
    os.environ.update(
        {
            "NEURON_COMPILE_CACHE_URL": str(request.cache_dir),
            "NEURON_PLATFORM_TARGET_OVERRIDE": request.plan.target,
            **more,
        }
    )


def tensors(folder: Path) -> set[str]:
    """Return the names in the headers of a model's safetensors files."""
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as stream:
            names |= set(json.loads(stream.read(int.from_bytes(stream.read(8), "little"))))
    return names


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages."""
    installed = {}
    for name in ("neuronx-cc", "torch-neuronx", *names):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def compile_result(
    request: CompileRequest, patterns: tuple[str, ...], names: tuple[str, ...], **proof: Any
) -> CompileResult:
    """Make the result. Raises WorkError if there is no compiled graph, though the library raised nothing."""
    paths: list[Path] = []
    for pattern in patterns:
        paths += request.out_dir.rglob(pattern)
    if not paths:
        raise WorkError(f"{request.plan.stack} ended without a compiled graph in its folder: the job's log says why.")
    return CompileResult(versions=versions(names), graphs=len(paths), proof=proof)
