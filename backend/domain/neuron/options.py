"""A compile plan in the words of the vendor's libraries: the same for compiling and for serving the result.

Pure. The names are those of NxD Inference 0.9.0, models/config.py, and of vLLM Neuron for SDK 2.33,
docs/guides/reference-configuration.md; the contract of the tests has them.
"""

from __future__ import annotations

from typing import Any

from backend.domain.neuron.compile_plan import CompilePlan

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
BACKEND = "neuron_native"
"""VLLM_NEURON_BACKEND: the route by way of XLA is deprecated."""


def nxd_options(plan: CompilePlan) -> dict[str, Any]:
    """Return the arguments of NeuronConfig and of a server's `override_neuron_config`, without paths and sampling.

    The shards of the weights are saved beside the graphs, or a server would look for the weights where they were
    compiled.
    """
    # 1. What every graph has.
    chosen: dict[str, Any] = {
        "tp_degree": plan.tensor_parallel,
        "batch_size": plan.batch,
        "ctx_batch_size": 1,
        "seq_len": plan.positions,
        "max_context_length": plan.positions,
        "padding_side": "right",
        "save_sharded_checkpoint": True,
        "torch_dtype": DTYPES[plan.dtype],
        "enable_bucketing": True,
        "context_encoding_buckets": list(plan.context_buckets),
        "token_generation_buckets": list(plan.token_buckets),
        "is_continuous_batching": plan.batch > 1,
    }
    # 2. What the recipe asks for.
    if plan.weights:
        chosen |= {"quantized": True, "quantization_dtype": plan.weights, "quantization_type": "per_channel_symmetric"}
    if plan.cache:
        chosen |= {"kv_cache_quant": True}
    if plan.draft_tokens:
        chosen |= {"speculation_length": plan.draft_tokens, "enable_fused_speculation": True}
    if plan.draft_method in {"eagle", "eagle3"}:
        chosen |= {"enable_eagle_speculation": True, "is_eagle3": plan.draft_method == "eagle3"}
    return chosen


def speculative_options(plan: CompilePlan, draft: str) -> dict[str, Any]:
    """Return `speculative_config` of vLLM's engine."""
    return {"method": plan.draft_method, "model": draft, "num_speculative_tokens": plan.draft_tokens}


def vllm_options(plan: CompilePlan) -> dict[str, Any]:
    """Return `neuron_config` of `--additional-config`. Sampling runs on the device, by each request's settings."""
    return {
        "num_batched_tokens_buckets": list(plan.context_buckets),
        "num_seqs_buckets": list(plan.token_buckets),
        "on_device_sampling_config": {},
    }
