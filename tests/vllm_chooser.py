"""Asks vLLM which kernel it takes for layers on GPUs that are not here. Runs under the serve environment's interpreter.

Standard input: a JSON list of cases; standard output, last line: a JSON list of kernel names, null where vLLM refuses.
vLLM's own choosers and each kernel's `can_implement` answer. Replaced is only what they ask of the machine: which
platform and compute capability it has, and whether packages and operators of the GPU build are there.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    import torch
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear.scaled_mm import cutlass, flashinfer, humming
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.platforms import PlatformEnum, current_platform
    from vllm.platforms.interface import DeviceCapability
    from vllm.scalar_type import scalar_types

    platform: Any = current_platform
    mixed = sys.modules["vllm.model_executor.kernels.linear.mixed_precision.humming"]
    for module in (humming, mixed):
        module.has_humming = lambda: True
    flashinfer.has_flashinfer = lambda: True
    cutlass.cutlass_fp8_supported = lambda: platform.get_device_capability().to_int() >= 89
    types = {"uint4": scalar_types.uint4, "uint4b8": scalar_types.uint4b8, "uint8b128": scalar_types.uint8b128}

    def choose(case: dict[str, Any]) -> str | None:
        has = DeviceCapability(*case["capability"]) if case["capability"] else None
        platform._enum = PlatformEnum.CUDA if has else PlatformEnum.CPU
        type(platform).get_device_capability = classmethod(lambda cls, device_id=0: has)
        type(platform).supports_fp8 = classmethod(lambda cls: has is None or has.to_int() >= 89)
        marlin_utils.current_platform = platform
        inputs, outputs, whole = case["inputs"], case["outputs"], case["all_inputs"]
        dtype, number = getattr(torch, case["dtype"]), has.to_int() if has else None
        try:
            if case["scheme"] == "wNa16":
                config: Any = linear.MPLinearLayerConfig(
                    full_weight_shape=(whole, outputs),
                    partition_weight_shape=(inputs, outputs),
                    weight_type=types[case["type"]],
                    act_type=dtype,
                    group_size=case["group"],
                    zero_points=case["type"] == "uint4",
                )
                return linear.choose_mp_linear_kernel(config, number).__name__
            return scaled(case, (outputs, inputs), dtype, number)
        except ValueError:
            return None

    def scaled(case: dict[str, Any], shape: tuple[int, int], dtype: Any, number: int | None) -> str:
        from vllm.model_executor.layers.quantization.utils import quant_utils as keys

        if case["scheme"] == "int8":
            config: Any = linear.Int8ScaledMMLinearLayerConfig(
                is_static_input_scheme=case["static"], is_channelwise=True, input_symmetric=True
            )
            possible: Any = linear._POSSIBLE_INT8_KERNELS
        else:
            static, below = case["static"], number is not None and number < 89
            activation = keys.kFp8StaticTensorSym if static else keys.kFp8DynamicTokenSym
            weight = keys.kFp8StaticTensorSym if static else keys.kFp8StaticChannelSym
            config = linear.FP8ScaledMMLinearLayerConfig(
                weight_quant_key=weight,
                activation_quant_key=activation,
                weight_shape=shape,
                input_dtype=dtype,
                out_dtype=dtype,
            )
            possible = linear._POSSIBLE_WFP8A16_KERNELS if below else linear._POSSIBLE_FP8_KERNELS
        chosen = linear.choose_scaled_mm_linear_kernel(config, possible, number, quantization=case["scheme"])
        return str(chosen.__name__)

    print(json.dumps([choose(case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
