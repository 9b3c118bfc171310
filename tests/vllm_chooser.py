"""Asks vLLM which kernel it takes for layers on GPUs that are not here. Runs under the serve environment's interpreter.

Standard input: a JSON list of cases. Standard output, last line: a JSON object with `kernels`, a name for each case and
null where vLLM refuses, and `errors`, by group size the largest relative error of the 4-bit kernel for processors.
vLLM's own choosers and each kernel's `can_implement` answer. Replaced is only what they ask of the machine: which
platform and compute capability it has, and whether packages and operators of the GPU build are there.
"""

from __future__ import annotations

import json
import sys
from functools import cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

SIZES = (2, 6, 8, 16, 24, 32, 48, 64, 96, 192)


def pretend(case: dict[str, Any]) -> int | None:
    """Let vLLM see the GPU of the case, or the processor; its compute capability as one number."""
    from vllm.model_executor.kernels.linear.mixed_precision import humming as mixed
    from vllm.model_executor.kernels.linear.scaled_mm import cutlass, flashinfer, humming
    from vllm.model_executor.layers.fused_moe.experts import fused_humming_moe
    from vllm.model_executor.layers.quantization.utils import flashinfer_mxint4_moe
    from vllm.platforms import PlatformEnum, current_platform
    from vllm.platforms.interface import DeviceCapability

    has = DeviceCapability(*case["capability"]) if case["capability"] else None
    platform: Any = current_platform
    platform._enum = PlatformEnum.CUDA if has else PlatformEnum.CPU
    type(platform).get_device_capability = classmethod(lambda cls, device_id=0: has)
    type(platform).supports_fp8 = classmethod(lambda cls: has is None or has.to_int() >= 89)
    for module in (humming, mixed, fused_humming_moe):
        module.has_humming = lambda: True
    # The package names its ways to multiply; which of them is taken does not matter here.
    fused_humming_moe.get_humming_moe_gemm_type = lambda config: "any"
    for experts_class in (fused_humming_moe.HummingIndexedExperts, fused_humming_moe.HummingGroupedExperts):
        experts_class.humming_gemm_type = staticmethod(lambda: SimpleNamespace(value="any"))
    flashinfer.has_flashinfer = lambda: True
    flashinfer_mxint4_moe.is_flashinfer_mxint4_moe_available = lambda: True
    cutlass.cutlass_fp8_supported = lambda: has is not None and has.to_int() >= 89
    _pretend_formats(has.to_int() if has else 0)
    return has.to_int() if has else None


def _pretend_formats(number: int) -> None:
    """Let the kernels of FP8 blocks, FP4 and microscaling formats find the packages and operators of the GPU build."""
    from vllm.model_executor.kernels.linear import mxfp4, mxfp8, nvfp4
    from vllm.model_executor.kernels.linear.scaled_mm import cutlass, deep_gemm, flashinfer
    from vllm.model_executor.layers.quantization.utils import nvfp4_utils

    # 1. FP8 blocks: CUTLASS from Hopper on, FlashInfer's on Hopper alone, DeepGEMM on both families.
    text = SimpleNamespace(model_type="llama")
    deep_gemm.get_current_vllm_config = lambda: SimpleNamespace(model_config=SimpleNamespace(hf_text_config=text))
    deep_gemm.is_deep_gemm_supported = lambda: deep_gemm.current_platform.support_deep_gemm()
    deep_gemm.should_use_deepgemm_for_fp8_linear = partial(deep_gemm_shapes(), supports_deep_gemm=number >= 90)
    type(deep_gemm.current_platform).support_deep_gemm = classmethod(lambda cls: number >= 90)
    cutlass.CUTLASS_BLOCK_FP8_SUPPORTED = number >= 90
    flashinfer.is_flashinfer_fp8_blockscale_gemm_supported = lambda: number == 90
    # 2. FP4 and microscaling formats: the packages are there, the operators as their sources are built.
    nvfp4_utils.cutlass_fp4_supported = lambda: number >= 100
    for package in (nvfp4, mxfp4, mxfp8):
        for name in ("cutlass", "flashinfer", "humming"):
            try:
                module = import_module(f"{package.__name__}.{name}")
            except ModuleNotFoundError:
                continue
            if hasattr(module, "quant_key_to_input_schema"):  # Humming's own names of FP4, FP8 and INT8 inputs
                module.quant_key_to_input_schema = lambda key: None
            for function in ("has_flashinfer", "has_flashinfer_cutedsl", "has_humming"):
                if hasattr(module, function):
                    setattr(module, function, lambda: True)
            if hasattr(module, "cutlass_fp4_supported"):
                module.cutlass_fp4_supported = lambda: number >= 100


@cache
def deep_gemm_shapes() -> Any:
    """vLLM's own check of shapes, before it is replaced by itself with a GPU that is pretended."""
    from vllm.utils.deep_gemm import should_use_deepgemm_for_fp8_linear

    return should_use_deepgemm_for_fp8_linear


def formats(case: dict[str, Any], number: int | None) -> str:
    """The kernel of a linear in FP8 blocks, FP4, a microscaling format, or INT4 with FP8 inputs."""
    import torch
    from vllm.model_executor.kernels import linear as kernels
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys
    from vllm.scalar_type import scalar_types

    scheme, dtype, shape = case["scheme"], getattr(torch, case["dtype"]), (case["outputs"], case["inputs"])
    if scheme == "w4a8-fp8":
        config: Any = kernels.MPLinearLayerConfig(
            full_weight_shape=(case["all_inputs"], case["outputs"]),
            partition_weight_shape=(case["inputs"], case["outputs"]),
            weight_type=scalar_types.int4,
            act_type=torch.float8_e4m3fn,
            group_size=case["group"],
            zero_points=False,
            out_type=dtype,
        )
        return str(kernels.choose_mp_linear_kernel(config, number).__name__)
    if scheme == "fp8-block":
        config = kernels.FP8ScaledMMLinearLayerConfig(
            weight_quant_key=keys.kFp8Static128BlockSym,
            activation_quant_key=keys.kFp8Dynamic128Sym,
            weight_shape=shape,
            input_dtype=dtype,
            out_dtype=dtype,
        )
        below = number is not None and number < 89
        possible: Any = kernels._POSSIBLE_WFP8A16_KERNELS if below else kernels._POSSIBLE_FP8_BLOCK_KERNELS
        return str(kernels.choose_scaled_mm_linear_kernel(config, possible, number, quantization=scheme).__name__)
    start = {
        "nvfp4": kernels.init_nvfp4_linear_kernel,
        "mxfp4": partial(kernels.init_mxfp4_linear_kernel, keys.kMxfp4Dynamic),
        "mxfp8": partial(kernels.init_mxfp8_linear_kernel, weight_shape=shape),
    }[scheme]
    return type(start()).__name__


def linear(case: dict[str, Any], number: int | None) -> str:
    """The kernel of a linear whose weights are integers and whose inputs are 16-bit."""
    import torch
    from vllm.model_executor.kernels.linear import MPLinearLayerConfig, choose_mp_linear_kernel
    from vllm.scalar_type import scalar_types

    config = MPLinearLayerConfig(
        full_weight_shape=(case["all_inputs"], case["outputs"]),
        partition_weight_shape=(case["inputs"], case["outputs"]),
        weight_type=getattr(scalar_types, case["type"]),
        act_type=getattr(torch, case["dtype"]),
        group_size=case["group"],
        zero_points=case["type"] == "uint4",
    )
    return str(choose_mp_linear_kernel(config, number).__name__)


def scaled(case: dict[str, Any], number: int | None) -> str:
    """The kernel of a linear with 8 bits on both sides."""
    import torch
    from vllm.model_executor.kernels import linear as kernels
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys

    static, dtype = case["static"], getattr(torch, case["dtype"])
    if case["scheme"] == "int8":
        config: Any = kernels.Int8ScaledMMLinearLayerConfig(
            is_static_input_scheme=static, is_channelwise=True, input_symmetric=True
        )
        possible: Any = kernels._POSSIBLE_INT8_KERNELS
    else:
        config = kernels.FP8ScaledMMLinearLayerConfig(
            weight_quant_key=keys.kFp8StaticTensorSym if static else keys.kFp8StaticChannelSym,
            activation_quant_key=keys.kFp8StaticTensorSym if static else keys.kFp8DynamicTokenSym,
            weight_shape=(case["outputs"], case["inputs"]),
            input_dtype=dtype,
            out_dtype=dtype,
        )
        below = number is not None and number < 89
        possible = kernels._POSSIBLE_WFP8A16_KERNELS if below else kernels._POSSIBLE_FP8_KERNELS
    chosen = kernels.choose_scaled_mm_linear_kernel(config, possible, number, quantization=case["scheme"])
    return str(chosen.__name__)


def experts(case: dict[str, Any]) -> str:
    """The backend of experts whose weights are integers, as compressed-tensors' method asks for it."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig, RoutingMethodType
    from vllm.model_executor.layers.fused_moe.oracle.int_wna16 import select_wna16_moe_backend
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys
    from vllm.scalar_type import scalar_types

    bits, group, zero_points = 8 if case["type"] == "uint8b128" else 4, case["group"], case["type"] == "uint4"
    shape: dict[str, Any] = {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    scale = keys.kInt8StaticGroupScale if bits == 8 else keys.kInt4StaticGroupScale
    scale = keys.kInt4Static32GroupScale if bits == 4 and group == 32 else scale
    config: Any = SimpleNamespace(
        hidden_dim=case["outputs"],
        intermediate_size_per_partition_unpadded=case["inputs"],
        moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
        moe_backend="auto",
        activation=MoEActivation.SILU,
        is_act_and_mul=True,
        num_experts=8,
        has_hash_routing=False,
        is_lora_enabled=False,
        routing_method=RoutingMethodType.Renormalize,
        router_logits_dtype=torch.bfloat16,
    )
    backend, _ = select_wna16_moe_backend(
        config=config,
        weight_key=keys.QuantKey(getattr(scalar_types, case["type"]), scale, symmetric=not zero_points),
        quant_config=QuantizationArgs(num_bits=bits, symmetric=not zero_points, **shape),
        may_have_zp=zero_points,
        may_have_bias=False,
        allow_tile_padding=True,
    )
    return str(backend.name)


def choose(case: dict[str, Any]) -> str | None:
    """The name of the kernel that vLLM takes; None where it raises."""
    number = pretend(case)
    try:
        if case["experts"]:
            return experts(case)
        if case["scheme"] not in {"wNa16", "int8", "fp8"}:
            return formats(case, number)
        return linear(case, number) if case["scheme"] == "wNa16" else scaled(case, number)
    except (ValueError, NotImplementedError):
        return None


def error(group: int) -> float:
    """The largest error of the 4-bit kernel for processors against a product in fp32, relative to the largest
    output."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.utils.quant_utils import pack_quantized_values_into_int32
    from vllm.scalar_type import scalar_types

    inputs, outputs, rows = 192, 64, 5
    torch.manual_seed(group)
    numbers = torch.randint(0, 16, (inputs, outputs), dtype=torch.int32)
    scales = (torch.rand(inputs // group, outputs) + 0.1).bfloat16()
    weight = ((numbers - 8).float().view(-1, group, outputs) * scales.float()[:, None]).view(inputs, outputs)
    tokens = torch.randn(rows, inputs).bfloat16()
    packed = pack_quantized_values_into_int32(numbers, scalar_types.uint4b8, 1)
    blocks = packed.view(inputs, -1, 2).permute(1, 0, 2).reshape(-1, inputs * 2).contiguous()
    options: dict[str, Any] = {"zeros": None, "bias": None, "pack_factor": 8, "isa_hint": "vec"}
    cpu_gemm_wna16 = ops.cpu_gemm_wna16(input=tokens, q_weight=blocks, scales=scales, **options)
    intended = tokens.float() @ weight
    return float((cpu_gemm_wna16.float() - intended).abs().max() / intended.abs().max())


def main() -> None:
    errors = {size: error(size) for size in SIZES}
    print(json.dumps({"kernels": [choose(case) for case in json.load(sys.stdin)], "errors": errors}))


if __name__ == "__main__":
    main()
