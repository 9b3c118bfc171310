"""The two containers that serve on SageMaker, and the environment variables that configure a variant in each.

Public sources: LMI (djl-serving d21927c, 2026-06-24): `OPTION_NAME` becomes vLLM's engine argument, `max_num_seqs` is
`OPTION_MAX_ROLLING_BATCH_SIZE`, false becomes `--no-`. The vLLM container (aws/deep-learning-containers, its
configuration page, 2026-09): `SM_VLLM_NAME` becomes `--name`, true a bare flag, false nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from backend.domain.deploy.deployment import CHANNEL, Container, Deployment
from backend.domain.evaluation.vllm_flags import speculative_config
from backend.domain.recipe.recipe import Serving

MODEL = "/opt/ml/model"
ADDITIONAL = f"/opt/ml/additional-model-data-sources/{CHANNEL}"
"""The folder into which SageMaker puts an additional data source."""
SERVED_NAME = "model"
ACCOUNT = "763104351884"
"""AWS's own of the Deep Learning Containers, in the regions of the default partition that need no opt-in."""
IMAGES: dict[Container, str] = {
    "lmi": "djl-inference:0.36.0-lmi28.0.0-cu130",
    "vllm": "vllm:server-sagemaker-cuda-v2.5",
}
"""AWS's images in September 2026, by public sources; `--image` names another."""
OTHER_ACCOUNTS = ("ap-east-", "me-", "af-", "eu-south-", "il-", "cn-", "us-gov-", "us-iso", "mx-", "ap-southeast-3")


class Paths(NamedTuple):
    """The folders of the weights in the container."""

    model: str = MODEL
    draft: str = ADDITIONAL


TOGETHER = Paths(f"{MODEL}/model", f"{MODEL}/draft")
"""Both under one data source, for what knows no additional ones."""


def image(container: Container, region: str) -> str | None:
    """Return the address of AWS's own image; None in a region whose images another account has, which must be given."""
    if region.startswith(OTHER_ACCOUNTS):
        return None
    return f"{ACCOUNT}.dkr.ecr.{region}.amazonaws.com/{IMAGES[container]}"


def environment(deployment: Deployment, paths: Paths) -> dict[str, str]:
    """Return the container's variables.

    They name no quantization: the weights' own configuration does, and a second name turns fast kernels off.
    """
    return (_lmi if deployment.container == "lmi" else _vllm)(deployment, paths)


def _lmi(deployment: Deployment, paths: Paths) -> dict[str, str]:
    chosen = deployment.serving
    settings: dict[str, object] = {
        "dtype": chosen.dtype,
        "kv_cache_dtype": chosen.kv_cache_dtype,
        "tensor_parallel_degree": chosen.tensor_parallel,
        "pipeline_parallel_degree": chosen.pipeline_parallel,
        "max_model_len": chosen.max_model_len,
        "max_rolling_batch_size": chosen.max_num_seqs,
        **_vllm_settings(chosen),
        "enable_prefix_caching": chosen.prefix_caching,
        "enable_chunked_prefill": chosen.chunked_prefill,
        "enforce_eager": True if chosen.enforce_eager else None,
        "served_model_name": SERVED_NAME,
        "speculative_config": _speculation(deployment, paths),
        # the engine that has no other reader of these: without it an older one may be chosen, which ignores a draft
        "async_mode": True,
        "rolling_batch": "disable",
        "entrypoint": "djl_python.lmi_vllm.vllm_async_service",
    }
    own = {f"OPTION_{name.upper()}": _text(value) for name, value in settings.items() if value is not None}
    # the variable that the engine of older containers reads, which ignore the other (aws/sagemaker-python-sdk#6143)
    older = {"OPTION_SPECULATIVE_DRAFT_MODEL": paths.draft} if deployment.draft else {}
    return {"HF_MODEL_ID": paths.model, **own, **older}


def _vllm(deployment: Deployment, paths: Paths) -> dict[str, str]:
    # 1. The options that have a value.
    chosen = deployment.serving
    settings: dict[str, object] = {
        "model": paths.model,
        "served_model_name": SERVED_NAME,
        "dtype": chosen.dtype,
        "kv_cache_dtype": chosen.kv_cache_dtype,
        "tensor_parallel_size": chosen.tensor_parallel,
        "pipeline_parallel_size": chosen.pipeline_parallel,
        "max_model_len": chosen.max_model_len,
        "max_num_seqs": chosen.max_num_seqs,
        **_vllm_settings(chosen),
        "enforce_eager": True if chosen.enforce_eager else None,
        "speculative_config": _speculation(deployment, paths),
    }
    # 2. Switches, which have a name for on and another for off.
    for name, value in (("prefix_caching", chosen.prefix_caching), ("chunked_prefill", chosen.chunked_prefill)):
        if value is not None:
            settings[f"{'' if value else 'no_'}enable_{name}"] = True
    # 3. Options that were not chosen are left to vLLM.
    return {f"SM_VLLM_{name.upper()}": _text(value) for name, value in settings.items() if value is not None}


def _vllm_settings(chosen: Serving) -> dict[str, object]:
    """Return vLLM's own options that both containers take by vLLM's names."""
    names = ("max_num_batched_tokens", "block_size", "attention_backend", "performance_mode")
    settings = {name: getattr(chosen, name) for name in names}
    experts = True if chosen.expert_parallel else None
    return {**settings, "data_parallel_size": chosen.data_parallel, "enable_expert_parallel": experts}


def _speculation(deployment: Deployment, paths: Paths) -> dict[str, object] | None:
    return speculative_config(deployment.speculation, paths.draft) if deployment.speculation else None


def read_environment(variables: Mapping[str, str]) -> tuple[Container, int | None]:
    """Return (the container that these variables are for, the GPUs over which it splits the weights)."""
    parallel = variables.get("OPTION_TENSOR_PARALLEL_DEGREE") or variables.get("SM_VLLM_TENSOR_PARALLEL_SIZE")
    return "vllm" if "SM_VLLM_MODEL" in variables else "lmi", int(parallel) if parallel else None


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)
