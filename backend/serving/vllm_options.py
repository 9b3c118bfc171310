"""Turns a variant's serving settings into vLLM's command-line options and environment variables.

Reads config.json, and is otherwise pure. Knows nothing of processes, free ports or HTTP.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import InvalidModel
from backend.domain.evaluation import vllm_flags
from backend.domain.evaluation.document import Variant
from backend.domain.model.facts import ASSUMED_CONTEXT
from backend.domain.needs.kv_cache_tokens import BLOCK, reserved_bytes, sequence_bytes
from backend.serving.vllm_plugin.whetstone_vllm import FORK, LAYERS
from backend.settings import GUARD, PLUGIN

TARGET_LINK = "target-model"
TOKENIZER_LINK = "tokenizer"
"""Names in the server's working directory, beside `vllm_flags.DRAFT_LINK`: vLLM's compile cache is keyed by the model's
path, and these never change."""

TOKENIZERS = "tokenizers"
"""Folder, below the server's cache, of tokenizers that replace the model's own files."""
GUARD_ARGUMENTS = ("--middleware", "whetstone_guard.Guard")
"""Makes the server require its key on all paths."""
NAMES = {
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
"""Names of each size in config.json, by model family."""

INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "USER",
    "LD_LIBRARY_PATH",
    "WHETSTONE_JOB",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "CC",
    "CXX",
)
"""Environment variables that the server inherits: no tokens, no PYTHONPATH, no VLLM_ variable that changes figures."""


class Tuning(NamedTuple):
    """Settings of vLLM on a processor, whatever it serves; they change no answer, only its time."""

    environment: Mapping[str, str]
    arguments: tuple[str, ...] = ()


BLOCKTIME_MS = "5"
"""Milliseconds that a thread of Intel's OpenMP spins before it sleeps: vLLM's own choice (in its
ompmultiprocessing module)."""


NO_NCCL = "--disable-nccl-for-dp-synchronization"
"""Changes nothing on a processor, but vLLM sets it with some speculation, and hashes it into the name of what it
compiles."""


def tuning(tensor_parallel: int = 1) -> Tuning:
    """Return the settings that serve fastest on a processor, by `benchmarks/serving_settings.py` (decision 0020).

    The model runs in the engine's own process, which is forked (decision 0039): vLLM's third process costs a copy of
    all imports, and two threads that wait for each other at every token. Layers that are alike are compiled once
    (decision 0040). A model that is split has one process per part, its threads bound to all cores.
    """
    if tensor_parallel > 1:
        return Tuning({"VLLM_CPU_OMP_THREADS_BIND": all_cores()})
    threads = str(len(os.sched_getaffinity(0)))
    environment = {"OMP_NUM_THREADS": threads, "KMP_BLOCKTIME": BLOCKTIME_MS, "KMP_TPAUSE": "0"}
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", FORK: "1", LAYERS: "1"}
    return Tuning(own | environment, ("--distributed-executor-backend", "uni", NO_NCCL))


def server_arguments(variant: Variant, *, port: int, served_name: str, kv_cache_bytes: int | None) -> list[str]:
    """Return the arguments after `python -m vllm.entrypoints.openai.api_server`."""
    return [
        *address_arguments(port=port, served_name=served_name),
        *vllm_flags.serving_flags(variant.serving),
        *(("--kv-cache-memory-bytes", str(kv_cache_bytes)) if kv_cache_bytes else ()),
        *vllm_flags.speculation_flags(variant.speculation, vllm_flags.DRAFT_LINK),
    ]


def address_arguments(*, port: int, served_name: str) -> list[str]:
    """Return the arguments for the model's name and the server's address."""
    return [
        *("--model", TARGET_LINK, f"--served-model-name={served_name}"),  # a name may begin with a dash
        *("--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log", "--enable-prompt-tokens-details"),
    ]


def standard_files(variant: Variant) -> list[str]:
    """Return options for a folder with Mistral's own files beside the standard ones, as published Mistral models have.

    vLLM 0.32 would take consolidated.safetensors, params.json and tekken.json (transformers_utils/config.py,
    model_loader/default_loader.py), while everything here reads config.json, its shards and tokenizer.json.
    """
    if not next(Path(variant.model_path or "").glob("consolidated*.safetensors"), None):
        return []
    return ["--config-format", "hf", "--load-format", "safetensors", "--tokenizer-mode", "hf"]


def kv_cache_bytes(variant: Variant, tokens_in_flight: int | None = None) -> int:
    """Return the bytes of cache for `max_num_seqs` sequences of `max_model_len` tokens.

    If the load is known, by the `tokens_in_flight` of all its streams, the cache fits those, and at least one full
    sequence, which vLLM requires.

    Per token and layer: 2 x KV heads x head size x bytes of an element; a draft's layers count as much as the target's,
    since vLLM pads all layers to one page size.
    """
    # 1. Bytes per token over all layers.
    width = 2
    if variant.serving.kv_cache_dtype == "fp8":
        width = 1
    elif variant.serving.dtype == "float32":
        width = 4
    token = cache_elements(variant) * width

    # 2. Bytes of as many full sequences as may run.
    length = variant.serving.max_model_len or context_length(variant)
    most = reserved_bytes(token, length, variant.serving.max_num_seqs)

    # 3. No more than a known load needs.
    if tokens_in_flight is None:
        return most
    return min(most, max(sequence_bytes(token, length), token * (tokens_in_flight + BLOCK)))


def cache_elements(variant: Variant) -> int:
    """Return the numbers that a cache holds for one token, over all layers, a draft's included. Raises InvalidModel."""
    config = _config(variant.model_path)
    heads = _size(config, "heads")
    head_size = int(config.get("head_dim") or _size(config, "hidden") // heads)
    layers = _size(config, "layers")
    if variant.speculation is not None and variant.speculation.draft_path is not None:
        layers += _size(_config(variant.speculation.draft_path), "layers")
    return 2 * layers * int(config.get("num_key_value_heads") or heads) * head_size


def context_length(variant: Variant) -> int:
    """Return the tokens of the longest sequence that the model's config states. Raises InvalidModel."""
    return _size(_config(variant.model_path), "context", ASSUMED_CONTEXT)


def _config(path: str | None) -> dict[str, Any]:
    file = Path(path or "") / "config.json"
    try:
        document: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        raise InvalidModel(f"{file} cannot be read: import or optimize the model again.") from None
    inner = document.get("text_config")
    return inner if isinstance(inner, dict) else document


def _size(config: dict[str, Any], what: str, default: int | None = None) -> int:
    """Return a size under any of its names. Raises InvalidModel if the file has none and there is no default."""
    value = next((config[name] for name in NAMES[what] if config.get(name)), default)
    if value is None:
        raise InvalidModel(
            f"config.json states no `{NAMES[what][0]}`, so the size of the cache is not known: set it there."
        )
    return int(value)


def environment(cache_root: Path, *, cpu: bool, openmp: Path | None, proposers: str | None = None) -> dict[str, str]:
    """Return the server's whole environment except a `Tuning`.

    `proposers` is the folder of a proposer class that the variant names; it and the plugin are on PYTHONPATH. On CPU
    Intel's OpenMP is preloaded, as vLLM's installation guide asks: without it speculative decoding is several times
    slower.
    """
    chosen = {name: os.environ[name] for name in INHERITED if name in os.environ}
    chosen |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_CACHE_ROOT": str(cache_root),
        "TORCHINDUCTOR_CACHE_DIR": str(cache_root / "inductor"),
        "PYTHONUNBUFFERED": "1",
    }
    if cpu:
        chosen |= {"LD_PRELOAD": str(openmp)} if openmp else {}
    folders = dict.fromkeys([*([str(PLUGIN)] if cpu else []), *([proposers] if proposers else [])])
    return chosen | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})


def with_key(environment: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the environment for a server that requires the key. Only the same user can read it."""
    path = os.pathsep.join(filter(None, [str(GUARD), environment.get("PYTHONPATH")]))
    return {**environment, "VLLM_API_KEY": key, "PYTHONPATH": path}


def all_cores() -> str:
    """Return the cores that this process may use, as vLLM writes them: `0-1`, or `0,2,5`."""
    cores = sorted(os.sched_getaffinity(0))
    if cores == list(range(cores[0], cores[-1] + 1)) and len(cores) > 1:
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))
