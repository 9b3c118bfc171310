"""Compiles with transformers-neuronx on the processor, one .neff a graph; a device loads them and compiles nothing.

Its support ended on 16 September 2025. The calls are those of 0.13 (1ade6d7), base.py, config.py and speculation.py;
the contract of the tests has their signatures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.jobs.progress import Progress
from backend.engines.neuron import compilation
from backend.engines.neuron.compilation import CompileRequest, CompileResult

CLASSES = {
    "bloom": "BloomForSampling",
    "gpt2": "GPT2ForSamplingWithContextBroadcasting",
    "llama": "LlamaForSampling",
    "mistral": "MistralForSampling",
    "mixtral": "MixtralForSampling",
    "opt": "OPTForSampling",
}
"""modeling_auto.py, without the two that cannot be saved."""
ONE_NUMBER = ("gpt2", "opt")
"""Their classes hand the positions to the configuration; the others take a list of buckets."""
TARGET, DRAFT = "target", "draft"


def build(request: CompileRequest, progress: Progress) -> CompileResult:
    """Compile target and draft, each to a folder of its own below `out_dir`."""
    level = request.plan.optimize_level
    flags = f"--model-type=transformer --auto-cast=none{f' -O{level}' if level else ''}"
    compilation.environment(request, NEURON_CC_FLAGS=flags)
    models = [(TARGET, request.model_dir), *([(DRAFT, request.draft_dir)] if request.draft_dir else [])]
    for name, folder in models:
        progress.phase(f"compile-{name}", f"Compiling the {name} for {request.plan.accelerator}", weight=4.0)
        model = _model(request, folder, draft=name == DRAFT)
        model.cpu_compile()
        model.save(str(request.out_dir / name))
    proof = _generated(request, progress) if request.device else {}
    return compilation.compile_result(request, ("*.neff",), ("transformers-neuronx",), **proof)


def _model(request: CompileRequest, folder: Path, *, draft: bool) -> Any:
    """The model with its shapes; the target of a speculation verifies all drafted tokens in one pass."""
    import transformers_neuronx as library

    plan = request.plan
    # 1. INT8 weights of the target, and an FP8 KV cache.
    quantized = (
        library.QuantizationConfig(quant_dtype="s8", dequant_dtype=plan.dtype) if plan.weights and not draft else None
    )
    options: dict[str, Any] = {"quant": quantized}
    if plan.cache:
        from transformers_neuronx.config import KVCacheQuantizationConfig

        options["kv_cache_quant"] = KVCacheQuantizationConfig(quant_dtype="f8e4m3fn", dequant_dtype=plan.dtype)
    # 2. The shapes that are compiled.
    buckets = list(plan.token_buckets)
    model = getattr(library, CLASSES[plan.model_type]).from_pretrained(
        str(folder),
        n_positions=buckets[-1] if plan.model_type in ONE_NUMBER else buckets,
        batch_size=plan.batch,
        amp=plan.dtype,
        tp_degree=plan.tensor_parallel,
        context_length_estimate=list(plan.context_buckets),
        neuron_config=library.NeuronConfig(**options),
    )
    if plan.draft_tokens and not draft:
        model.enable_speculative_decoder(plan.draft_tokens)
    return model


def _generated(request: CompileRequest, progress: Progress) -> dict[str, Any]:
    """Load what was saved on the device, generate, and return how many tokens came."""
    import torch

    # 1. Load the target.
    progress.phase("prove", "Loading the compiled model on the device", weight=1.0)
    target = _loaded(request, TARGET, request.model_dir)
    prompt = torch.ones((request.plan.batch, 1), dtype=torch.long)
    length = min(1 + compilation.PROBE_TOKENS, request.plan.positions)

    # 2. Generate, with the draft if there is one.
    if request.draft_dir is None:
        answer = target.sample(prompt, sequence_length=length)
    else:
        from transformers_neuronx.speculation import SpeculativeGenerator

        draft = _loaded(request, DRAFT, request.draft_dir)
        answer = SpeculativeGenerator(draft, target, k=request.plan.draft_tokens).sample(prompt, sequence_length=length)
    return {"generated_tokens": int(answer.shape[-1]) - 1}


def _loaded(request: CompileRequest, name: str, folder: Path) -> Any:
    model = _model(request, folder, draft=name == DRAFT)
    model.load(str(request.out_dir / name))
    model.to_neuron()
    return model
