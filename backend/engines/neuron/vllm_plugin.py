"""vLLM Neuron: every bucket is compiled by starting vLLM's engine once; its graphs lie below VLLM_CACHE_ROOT.

Without a device it compiles only (VLLM_NEURON_CPU_COMPILE). Options and variables are those of the vendor's
documentation for SDK 2.33, vllm-neuron/docs of aws-neuron-sdk (43a8962).
"""

from __future__ import annotations

from typing import Any

from backend.domain.jobs.progress import Progress
from backend.domain.neuron import options
from backend.engines.neuron import compilation
from backend.engines.neuron.compilation import CompileRequest, CompileResult


def build(request: CompileRequest, progress: Progress) -> CompileResult:
    """Compile by starting the engine; on a device it generates too."""
    # 1. Set the environment before vLLM is imported.
    plan = request.plan
    alone = {} if request.device else {"VLLM_NEURON_CPU_COMPILE": "1"}
    compilation.environment(request, VLLM_CACHE_ROOT=str(request.out_dir), VLLM_NEURON_BACKEND=options.BACKEND, **alone)
    from vllm import LLM, SamplingParams

    more: dict[str, Any] = {} if plan.prefix_cache is None else {"enable_prefix_caching": plan.prefix_cache}
    if request.draft_dir is not None:
        more["speculative_config"] = options.speculative_options(plan, str(request.draft_dir))
    # 2. Starting the engine compiles every bucket.
    progress.phase("compile", f"Compiling for {plan.accelerator} by starting vLLM once", weight=6.0)
    engine = LLM(
        model=str(request.model_dir),
        tensor_parallel_size=plan.tensor_parallel,
        max_model_len=plan.positions,
        max_num_seqs=plan.batch,
        max_num_batched_tokens=plan.positions,
        dtype=options.DTYPES[plan.dtype],
        kv_cache_dtype=plan.cache or "auto",
        additional_config={"neuron_config": options.vllm_options(plan)},
        **more,
    )
    # 3. On a device, generate.
    proof = {}
    if request.device:
        (answer,) = engine.generate(
            ["a"], SamplingParams(max_tokens=compilation.PROBE_TOKENS, temperature=0.0, ignore_eos=True)
        )
        proof = {"generated_tokens": len(answer.outputs[0].token_ids)}
    return compilation.compile_result(request, ("neuron/compile_cache/*/*.neff",), ("vllm-neuron", "vllm"), **proof)
