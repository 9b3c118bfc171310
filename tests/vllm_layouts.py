"""Asks vLLM how it reads quantized linears on GPUs that are not here. Runs under the serve environment's interpreter.

Standard input: a JSON list of cases, each a `config` (quantization_config of a checkpoint), a `capability` and
`linears`, by module name their `inputs`, `outputs` and stored `tensors` (local name to dtype and shape). Standard
output, last line: a JSON list with, for each case, a `scheme` and the `unread` tensors of each linear, or the `error`
that vLLM raises. vLLM's own classes parse the configuration, choose the scheme and make the parameters that a
checkpoint is loaded into.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from vllm_chooser import pretend

DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "I8": "int8",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
}


FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
"""Matrices that vLLM's models fuse (packed_modules_mapping)."""


def single_device() -> None:
    """Let parameters see one device, and the schemes a model in bfloat16."""
    import torch
    from vllm.distributed import parallel_state
    from vllm.model_executor import parameter
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_w8a8_fp8,
        compressed_tensors_w8a16_fp8,
    )
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    for module in (parameter, parallel_state, fp8_utils):
        module.get_tensor_model_parallel_rank = lambda: 0
        module.get_tensor_model_parallel_world_size = lambda: 1
    import vllm.distributed

    vllm.distributed.get_tensor_model_parallel_world_size = lambda: 1
    model = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16))
    for module in (compressed_tensors_w8a8_fp8, compressed_tensors_w8a16_fp8):
        module.get_current_vllm_config = lambda: model
    torch.set_default_dtype(torch.bfloat16)


def read(case: dict[str, Any]) -> dict[str, Any]:
    """Return the scheme of each linear with the stored tensors that it has no parameter for; or vLLM's error."""
    import torch
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    pretend({"capability": case["capability"]})
    try:
        config = CompressedTensorsConfig.from_config(case["config"])
        config.packed_modules_mapping = FUSED
        linears = {}
        for name, linear in case["linears"].items():
            # 1. The scheme by vLLM's own selection; none where the linear is excepted.
            scheme = config.get_scheme(torch.nn.Linear(1, 1, device="meta"), name)
            if scheme is None or not linear["tensors"]:
                linears[name] = {"scheme": type(scheme).__name__ if scheme else None, "unread": []}
                continue
            # 2. The parameters that a checkpoint is loaded into, against what is stored.
            layer = torch.nn.Module()
            scheme.create_weights(
                layer,
                input_size=linear["inputs"],
                input_size_per_partition=linear["inputs"],
                output_partition_sizes=[linear["outputs"]],
                output_size=linear["outputs"],
                params_dtype=torch.bfloat16,
                weight_loader=lambda *_: None,
            )
            parameters = dict(layer.named_parameters())
            unread = [
                f"{local}: {stored} into {describe(parameters.get(local))}"
                for local, stored in linear["tensors"].items()
                if describe(parameters.get(local)) != [DTYPES[stored[0]], list(stored[1])]
            ]
            missing = [f"{local} is not stored" for local in parameters if local not in linear["tensors"]]
            linears[name] = {"scheme": type(scheme).__name__, "unread": unread + missing}
        return {"linears": linears}
    except (ValueError, NotImplementedError, RuntimeError) as error:
        return {"error": str(error)[:300]}


def describe(parameter: Any) -> list[Any] | None:
    """Return dtype and shape of a parameter."""
    return None if parameter is None else [str(parameter.dtype).removeprefix("torch."), list(parameter.shape)]


def main() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        single_device()
        print(json.dumps([read(case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
