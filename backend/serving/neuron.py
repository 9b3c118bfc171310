"""Options for vLLM to serve what was compiled for Neuron: arguments, variables and the folder of graphs of each stack.

Two plugins have the same name. NxD Inference is served by vllm-neuron up to 0.5 (a5ef7c8,
worker/neuronx_distributed_model_loader.py), vLLM Neuron by vllm-neuron from 0.21 on (SDK 2.33,
docs/guides/reference-configuration.md). Knows nothing of processes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.vllm_flags import speculation_flags
from backend.domain.neuron import options
from backend.domain.neuron.compile_plan import CompilePlan

FOLDER = "compiled"
"""Folder of the artifact, beside `model`."""
CONFIG, TRACED, WEIGHTS = "neuron_config.json", "model.pt", "weights"
"""Files that NxD Inference saves: its configuration, the graphs, and one file of weights per rank."""


def compile_plan(variant: Variant) -> CompilePlan | None:
    """Return the plan by which the variant was compiled for Neuron; None for any other variant."""
    fields = {name: value for name, value in (variant.neuron or {}).items() if name in CompilePlan.model_fields}
    return CompilePlan.model_validate({**fields, "model": variant.name}) if variant.neuron else None


def arguments(variant: Variant, plan: CompilePlan, draft: str) -> list[str]:
    """Return the arguments for the compiled shapes, precision and buckets; `draft` is the draft's folder."""
    chosen = ["--tensor-parallel-size", str(plan.tensor_parallel), "--max-model-len", str(plan.positions)]
    chosen += ["--max-num-seqs", str(plan.batch), "--dtype", options.DTYPES[plan.dtype]]
    # graphs without blocks of cache: the loader would take the default for a prefix cache
    if plan.stack == "nxd-inference":
        chosen += ["--no-enable-prefix-caching", *_additional("override_neuron_config", options.nxd_options(plan))]
    else:
        chosen += ["--max-num-batched-tokens", str(plan.positions), "--kv-cache-dtype", plan.cache or "auto"]
        caching = variant.serving.prefix_caching
        if caching is not None:
            chosen += ["--enable-prefix-caching" if caching else "--no-enable-prefix-caching"]
        chosen += _additional("neuron_config", options.vllm_options(plan))
    return [*chosen, *speculation_flags(variant.speculation, draft)]


def _additional(name: str, settings: dict[str, Any]) -> list[str]:
    return ["--additional-config", json.dumps({name: settings})]


def environment(plan: CompilePlan, folder: Path, cache_root: Path) -> dict[str, str]:
    """Return variables for as many free cores as it was compiled for, the graphs in `folder`, and no compilation."""
    own = {"NEURON_RT_NUM_CORES": str(plan.tensor_parallel), "NEURON_COMPILE_CACHE_URL": str(cache_root / "neuron")}
    if plan.stack == "nxd-inference":
        own |= {"NEURON_COMPILED_ARTIFACTS": str(folder), "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference"}
        return own | ({"XLA_HANDLE_SPECIAL_SCALAR": "1", "UNSAFE_FP8FNCAST": "1"} if plan.cache else {})
    own |= {"VLLM_CACHE_ROOT": str(folder), "VLLM_NEURON_BACKEND": options.BACKEND}
    # With these a missing graph is an error, as the vendor advises for production (cpu_compilation.md).
    return own | {"VLLM_NEURON_DISABLE_WARMUP_COMPILE": "1", "NEURON_LIBTORCH_DISABLE_GRAPH_CAPTURE_BACKEND": "1"}


def prepare_graphs(variant: Variant, plan: CompilePlan, cache_root: Path) -> Path:
    """Return a folder of the compiled files that the server may write to; artifacts do not change. Weights are links.

    Raises ServerFailed if compiled files are missing.
    """
    packed = Path(variant.model_path or "").parent / FOLDER
    if missing := _missing_file(packed, plan):
        raise ServerFailed(
            f"{variant.name} cannot be served: its compiled files lack {missing}, so it would be compiled again: "
            "optimize the model once more."
        )
    copy = cache_root / f"{FOLDER}-{(variant.neuron or {}).get('key', plan.key)}-{variant.source}"
    if plan.stack == "nxd-inference":  # make the links again: a server that compiled wrote there
        shutil.rmtree(copy, ignore_errors=True)
    if not copy.exists():
        with files.staged_folder(copy) as staging:
            _fill(staging, packed, plan)
    return copy


def recompiling_sentence(variant: Variant, log: Path) -> str:
    """Say why the server was stopped: the older plugin could not load the compiled files and began to compile."""
    return (
        f"The model server did not start: what was compiled of {variant.name} could not be loaded, and it began to "
        "compile "
        f"again: optimize the model once more with the versions that are installed here; see {log}."
    )


def _fill(folder: Path, packed: Path, plan: CompilePlan) -> None:
    if plan.stack != "nxd-inference":
        shutil.copytree(packed, folder, dirs_exist_ok=True)
        return
    for path in packed.iterdir():
        if path.name == CONFIG:
            shutil.copyfile(path, folder / path.name)
        else:
            (folder / path.name).symlink_to(path.resolve())


def _missing_file(packed: Path, plan: CompilePlan) -> str | None:
    if plan.stack == "nxd-inference":
        shards = [f"{WEIGHTS}/tp{rank}_sharded_checkpoint.safetensors" for rank in range(plan.tensor_parallel)]
        return next((name for name in (CONFIG, TRACED, *shards) if not (packed / name).is_file()), None)
    pattern = "neuron/compile_cache/*/*.neff"
    return None if next(packed.glob(pattern), None) else pattern
