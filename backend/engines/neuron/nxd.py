"""NxD Inference: one traced model (`model.pt`) with its `neuron_config.json`, compiled without a device and loaded on
one.

The calls are those of 0.9.0 (4bcdc54), inference_demo.py and models/config.py; the contract of the tests has their
signatures.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

from backend.domain.errors import WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.neuron import options
from backend.engines.neuron import compilation
from backend.engines.neuron.compilation import CompileRequest, CompileResult

QUANTIZED = "quantized"
"""Folder below `out_dir` with the INT8 weights until they are cut over the cores."""


LM_HEAD = "lm_head.weight"
NO_HEAD = (
    f"The EAGLE draft has no `{LM_HEAD}`, which NxD Inference takes from it: copy the model's own into the draft's "
    "safetensors, as its feature guide shows (EAGLE Checkpoint Compatibility)."
)


def build(request: CompileRequest, progress: Progress) -> CompileResult:
    """Quantize where the plan says so, compile target and draft as one, and on a device compare logits and generate."""
    flags = {"XLA_HANDLE_SPECIAL_SCALAR": "1", "UNSAFE_FP8FNCAST": "1"} if request.plan.cache else {}
    compilation.environment(request, BASE_COMPILE_WORK_DIR=f"{request.cache_dir / 'work' / request.plan.key}/", **flags)
    if (
        request.plan.draft_method == "eagle"
        and request.draft_dir
        and LM_HEAD not in compilation.tensors(request.draft_dir)
    ):
        raise WorkError(NO_HEAD)
    kind, model = _model(request)
    if request.plan.weights:
        progress.phase("quantize", "Quantizing the weights to INT8", weight=1.0)
        (request.out_dir / QUANTIZED).mkdir()
        kind.save_quantized_state_dict(str(request.model_dir), model.config)
    progress.phase("compile", f"Compiling for {request.plan.accelerator}", weight=6.0)
    model.compile(str(request.out_dir))
    shutil.rmtree(request.out_dir / QUANTIZED, ignore_errors=True)  # the shards of each core hold the same
    proof = _proved(request, model, progress) if request.device else {}
    return compilation.compile_result(
        request, ("model.pt",), ("neuronx-distributed-inference", "neuronx-distributed"), **proof
    )


def _model(request: CompileRequest) -> tuple[Any, Any]:
    """Make the model's class and the model with its configuration; a draft is fused into it."""
    from neuronx_distributed_inference.models.config import FusedSpecNeuronConfig, OnDeviceSamplingConfig
    from neuronx_distributed_inference.utils.constants import MODEL_TYPES
    from neuronx_distributed_inference.utils.hf_adapter import load_pretrained_config

    # 1. The class of the model, its settings and sampling.
    kind = MODEL_TYPES[request.plan.model_type]["causal-lm"]
    neuron_options = options.nxd_options(request.plan)
    neuron_options |= {"quantized_checkpoints_path": str(request.out_dir / QUANTIZED)} if request.plan.weights else {}
    sampling = {"on_device_sampling_config": OnDeviceSamplingConfig(top_k=1)} if request.plan.draft_tokens else {}

    def config(settings: Any, folder: Path) -> Any:
        return kind.get_config_cls()(settings, load_config=load_pretrained_config(str(folder)))

    # 2. The target's configuration; a draft is fused into it.
    chosen = config(kind.get_neuron_config_cls()(**neuron_options, **sampling), request.model_dir)
    if request.draft_dir is not None:
        draft = copy.deepcopy(chosen.neuron_config)
        draft.enable_fused_speculation, draft.quantized = False, False
        if request.plan.draft_method == "draft":
            draft.speculation_length = 0
        else:
            draft.is_eagle_draft, draft.sequence_parallel_enabled = True, False
        chosen.fused_spec_config = FusedSpecNeuronConfig(
            kind._model_cls, draft_config=config(draft, request.draft_dir), draft_model_path=str(request.draft_dir)
        )
    return kind, kind(str(request.model_dir), chosen)


def _proved(request: CompileRequest, model: Any, progress: Progress) -> dict[str, Any]:
    """Load the model on the device and compare its logits with transformers'; with a draft, its tokens.

    The library compares by itself; what diverges is its error, and so the job's.
    """
    from neuronx_distributed_inference.utils.accuracy import check_accuracy, check_accuracy_logits
    from transformers import GenerationConfig

    from backend.layered import tokenizers

    # 1. Load what was compiled.
    progress.phase("prove", "Loading the compiled model on the device and comparing its answers", weight=2.0)
    model.load(str(request.out_dir))
    tokenizer = tokenizers.load(request.model_dir)
    tokenizer.padding_side = "right"

    # 2. Compare tokens, or logits.
    compare, how = check_accuracy_logits, "logit-matching"
    if request.draft_dir:
        compare, how = check_accuracy, "token-matching"
    compare(
        model,
        tokenizer,
        generation_config=GenerationConfig(do_sample=False),
        num_tokens_to_check=compilation.PROBE_TOKENS,
    )
    return {"accuracy": how, "tokens": compilation.PROBE_TOKENS}
