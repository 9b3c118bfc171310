"""Serving settings that are no engine's own choice, as flags of llama.cpp's server and of Whetstone's over OpenVINO.

For servers that are started here and for a person's own command. `evaluation/vllm_flags` has those of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.domain.recipe.recipe import Serving


def llama_cpp_flags(serving: Serving) -> list[str]:
    """Return flags of llama-server (llama.cpp 0c1e57098, tools/server/README.md)."""
    cache = None if serving.kv_cache_dtype == "auto" else serving.kv_cache_dtype
    flash = None if serving.flash_attention is None else ("off", "on")[serving.flash_attention]
    return _write(
        {
            "batch-size": serving.max_num_batched_tokens,
            "ubatch-size": serving.micro_batch_tokens,
            "flash-attn": flash,
            "cache-type-k": cache,
            "cache-type-v": cache,
        }
    )


def openvino_flags(serving: Serving) -> list[str]:
    """Return flags of `backend.serving.openvino_program`."""
    flags = {
        "max-num-batched-tokens": serving.max_num_batched_tokens,
        "cache-eviction-tokens": serving.cache_eviction_tokens,
        "sparse-attention": serving.sparse_attention,
    }
    return [*_write(flags), *_write_switches({"prefix-caching": serving.prefix_caching})]


def _write(values: Mapping[str, object]) -> list[str]:
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]


def _write_switches(values: Mapping[str, bool | None]) -> list[str]:
    """Return a flag for each that is on."""
    return [f"--{name}" for name, is_on in values.items() if is_on]
