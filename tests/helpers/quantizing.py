"""Quantizes a tiny model in a test, by every method of the native engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.jobs.progress import NoProgress, Progress
from backend.engines.base import Pruning, QuantizeRequest, QuantizeResult
from backend.engines.native import quantize
from backend.engines.native.methods import pipelines
from tests.tiny import TEXT

GROUPS: dict[str, Any] = {"bits": 4, "group_size": 32, "symmetric": False}
METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "rtn": ({"method": "rtn", **GROUPS}, 0.15),
    "rtn 8 bits": ({"method": "rtn", "bits": 8, "group_size": 32}, 0.001),
    "awq with clipping": ({"method": "awq", "clip": True, **GROUPS}, 0.15),
    "gptq": ({"method": "gptq", **GROUPS}, 0.15),
    "awq 3 bits": ({"method": "awq", "clip": True, **GROUPS, "bits": 3}, 0.08),
    "gptq 2 bits": ({"method": "gptq", **GROUPS, "bits": 2}, 0.2),
    "gptq symmetric in activation order": ({"method": "gptq", **GROUPS, "symmetric": True, "act_order": True}, 0.15),
    "gptq after awq": ({"method": "gptq", "awq_scales": True, "clip": True, "act_order": True, **GROUPS}, 0.15),
    "autoround": ({"method": "autoround", "awq_scales": True, "clip": True, "learning_steps": 20, **GROUPS}, 0.15),
    "w8a8": ({"method": "w8a8", "bits": 8}, 0.01),
    "w8a8 static": ({"method": "w8a8", "bits": 8, "activations": "static"}, 0.1),
    "smoothquant": ({"method": "smoothquant", "bits": 8}, 0.01),
    "smoothquant static": ({"method": "smoothquant", "bits": 8, "activations": "static"}, 0.1),
    "int8": ({"method": "int8", "bits": 8}, 0.005),
    "fp8": ({"method": "fp8", "bits": 8}, 0.05),
    "fp8 static": ({"method": "fp8", "bits": 8, "activations": "static"}, 0.05),
    "fp8 in blocks": ({"method": "fp8_block", "bits": 8}, 0.01),
    "mxfp8": ({"method": "mxfp8", "bits": 8}, 0.01),
    "w4a8 with fp8": ({"method": "w4a8_fp8", "bits": 4, "clip": True, "act_order": True}, 0.02),
    "w6a6": ({"method": "w6a6", "bits": 6}, 0.05),
    "w4a4": ({"method": "w4a4", "bits": 4}, 0.3),
    "slim_llm": ({"method": "slim_llm", "bits": 2, "group_size": 32, "clip": True, "act_order": True}, 0.3),
    "slim_llm 3 bits": ({"method": "slim_llm", "bits": 3, "group_size": 32}, 0.15),
    "bitnet": ({"method": "bitnet", "bits": 2, "group_size": 32}, 1.0),
    "billm": ({"method": "billm", "bits": 1}, 1.0),
    "nvfp4": ({"method": "nvfp4", "bits": 4}, 0.1),
    "nvfp4 weights": ({"method": "nvfp4", "bits": 4, "activations": "none"}, 0.06),
    "mxfp4": ({"method": "mxfp4", "bits": 4}, 0.15),
    "fp8 cache": ({"method": "kv_cache"}, 0.01),
    "int8 with fp8 cache": ({"method": "w8a8", "bits": 8, "kv_cache": True}, 0.01),
    "sparsegpt": ({"method": None, "pruning": Pruning(method="sparsegpt", sparsity=0.2)}, 0.5),
    "wanda then gptq": ({"method": "gptq", "pruning": Pruning(method="wanda", sparsity=0.2), **GROUPS}, 0.5),
}
"""Request and the most KL divergence (nats a token) on the text it was calibrated on."""


def run(model: Path, out: Path, *, progress: Progress | None = None, **options: Any) -> QuantizeResult:
    tuning = {name: options.pop(name) for name in pipelines.TUNING & options.keys()}
    values = {"calibration_texts": [TEXT], "samples": 8, "length": 32, "tuning": tuning, **options}
    return quantize(QuantizeRequest(model_dir=model, out_dir=out, **values), progress or NoProgress())
