"""vLLM 0.32's kernels for formats with groups of their own: FP8 in blocks, NVFP4, MXFP4, MXFP8, INT4 with FP8 inputs.

`table` has those of the other schemes, and says what the fields are.
"""

from __future__ import annotations

from backend.domain.kernels.conditions import FP8_BLOCK, Conditions, Scheme
from backend.domain.kernels.table import (
    CUTLASS_W4A8,
    FP8_ARITHMETIC,
    HALF,
    HUMMING,
    HUMMING_FP8,
    MARLIN_FP8,
    MOE_FP8,
    MOE_MARLIN_FP8,
    VLLM,
    Kernel,
    List,
)

ARITHMETIC: dict[str, tuple[int, int]] = {
    "fp8": FP8_ARITHMETIC,
    "fp8-block": (9, 0),
    "w4a8-fp8": (9, 0),
    "nvfp4": (10, 0),
    "mxfp4": (10, 0),
    "mxfp8": (10, 0),
}
"""The compute capability from which a kernel here multiplies in the scheme's own type; below it only weights are stored
so, and products are 16-bit. FP8 in blocks: DeepGEMM and CUTLASS begin with Hopper, and vLLM takes Marlin on Ada. FP4
and scales in powers of two: Blackwell's tensor cores (NVIDIA, "Introducing NVFP4", 2025; PTX ISA 8.7, tcgen05.mma
`.block_scale`)."""
_SCALED = "kernels/linear/scaled_mm"
_BLOCK_SHAPE = f"{VLLM}, layers/quantization/utils/fp8_utils.py, validate_fp8_block_shape"
_DEEPGEMM = Conditions(lowest=(9, 0), dtypes=frozenset({"bfloat16"}), inputs_multiple=FP8_BLOCK, outputs_multiple=64)
DEEPGEMM_BLOCK = Kernel(
    "DeepGemmFp8BlockScaledMMKernel",
    "DeepGEMM",
    f"{VLLM}, {_SCALED}/deep_gemm.py, DeepGemmFp8BlockScaledMMKernel; vLLM's build for GPUs brings DeepGEMM",
    _DEEPGEMM,
)
FLASHINFER_BLOCK = Kernel(
    "FlashInferFp8DeepGEMMDynamicBlockScaledKernel",
    "FlashInfer and DeepGEMM",
    f"{VLLM}, {_SCALED}/flashinfer.py, FlashInferFp8DeepGEMMDynamicBlockScaledKernel",
    _DEEPGEMM._replace(below=(9, 1), package="flashinfer-python"),
)
CUTLASS_BLOCK = Kernel(
    "CutlassFp8BlockScaledMMKernel",
    "CUTLASS",
    f"{VLLM}, {_SCALED}/cutlass.py, CutlassFp8BlockScaledMMKernel",
    Conditions(lowest=(9, 0)),
    Conditions(dtypes=HALF, inputs_multiple=FP8_BLOCK),
    f"{VLLM}, layers/quantization/utils/fp8_utils.py, per_token_group_quant_fp8: whole groups of inputs",
)
CPU_BLOCK_W8A8 = Kernel(
    "CPUFp8W8A8BlockScaledMMKernel",
    "vLLM's AMX kernel",
    f"{VLLM}, {_SCALED}/cpu.py, CPUFp8W8A8BlockScaledMMKernel",
    Conditions(outputs_multiple=32, dtypes=frozenset({"bfloat16", "float32"}), feature="amx_fp8"),
)
CPU_BLOCK = Kernel(
    "CPUFp8BlockScaledMMKernel",
    "vLLM's AMX kernel",
    f"{VLLM}, {_SCALED}/cpu.py, CPUFp8BlockScaledMMKernel",
    Conditions(dtypes=frozenset({"bfloat16", "float32"}), feature="amx_int8"),
)

_FLASHINFER = "flashinfer-python"
_BLACKWELL = Conditions(lowest=(10, 0), package=_FLASHINFER)
_FIRST_BLACKWELL = _BLACKWELL._replace(below=(11, 0))
_FP4_HALF = Conditions(dtypes=HALF)
_FP4_OUTPUT = f"{VLLM}, csrc/quantization/fp4: the type of the outputs"
FLASHINFER_NVFP4 = Kernel(
    "FlashInferCuteDslNvFp4LinearKernel",
    "FlashInfer",
    f"{VLLM}, kernels/linear/nvfp4/flashinfer.py, FlashInferCuteDslNvFp4LinearKernel",
    _FIRST_BLACKWELL,
    _FP4_HALF,
    _FP4_OUTPUT,
)
FLASHINFER_CUTLASS_NVFP4 = FLASHINFER_NVFP4._replace(
    name="FlashInferCutlassNvFp4LinearKernel",
    source=f"{VLLM}, kernels/linear/nvfp4/flashinfer.py, FlashInferCutlassNvFp4LinearKernel",
    asks=_BLACKWELL,
)
CUTLASS_NVFP4 = Kernel(
    "CutlassNvFp4LinearKernel",
    "CUTLASS",
    f"{VLLM}, kernels/linear/nvfp4/cutlass.py, CutlassNvFp4LinearKernel",
    Conditions(lowest=(10, 0)),
    _FP4_HALF,
    _FP4_OUTPUT,
)
_MARLIN_PADDED = f"{VLLM}, layers/quantization/utils/marlin_utils_fp4.py: sizes are padded, inputs are 16-bit"
MARLIN_NVFP4 = Kernel(
    "MarlinNvFp4LinearKernel",
    "Marlin",
    f"{VLLM}, kernels/linear/nvfp4/marlin.py, MarlinNvFp4LinearKernel",
    Conditions(lowest=(7, 5)),
    _FP4_HALF,
    _MARLIN_PADDED,
)
HUMMING_NVFP4 = Kernel(
    "HummingNvFp4LinearKernel",
    "Humming",
    f"{VLLM}, kernels/linear/nvfp4/humming.py, HummingNvFp4LinearKernel",
    Conditions(lowest=(7, 5), package=HUMMING.asks.package),
    HUMMING.needs,
    HUMMING.needs_source,
)
FLASHINFER_MXFP4 = Kernel(
    "FlashInferMxFp4LinearKernel",
    "FlashInfer",
    f"{VLLM}, kernels/linear/mxfp4/flashinfer.py, FlashInferMxFp4LinearKernel",
    _BLACKWELL,
    _FP4_HALF,
    _FP4_OUTPUT,
)
MARLIN_MXFP4 = MARLIN_NVFP4._replace(
    name="MarlinMxFp4LinearKernel", source=f"{VLLM}, kernels/linear/mxfp4/marlin.py, MarlinMxFp4LinearKernel"
)
HUMMING_MXFP4 = HUMMING_NVFP4._replace(
    name="HummingMxFp4LinearKernel", source=f"{VLLM}, kernels/linear/mxfp4/humming.py, HummingMxFp4LinearKernel"
)
_MXFP8_SIZES = _BLACKWELL._replace(least_size=128)
FLASHINFER_MXFP8 = Kernel(
    "FlashInferCutedslMxfp8LinearKernel",
    "FlashInfer",
    f"{VLLM}, kernels/linear/mxfp8/flashinfer.py, FlashInferCutedslMxfp8LinearKernel",
    _MXFP8_SIZES._replace(below=(11, 0)),
    _FP4_HALF,
    _FP4_OUTPUT,
)
FLASHINFER_CUTLASS_MXFP8 = FLASHINFER_MXFP8._replace(
    name="FlashInferCutlassMxfp8LinearKernel",
    source=f"{VLLM}, kernels/linear/mxfp8/flashinfer.py, FlashInferCutlassMxfp8LinearKernel",
    asks=_MXFP8_SIZES,
)
MARLIN_MXFP8 = Kernel(
    "MarlinMxfp8LinearKernel",
    "Marlin",
    f"{VLLM}, kernels/linear/mxfp8/marlin.py, MarlinMxfp8LinearKernel",
    Conditions(lowest=(7, 5), inputs_multiple=32),
    _FP4_HALF,
    f"{VLLM}, layers/quantization/utils/marlin_utils_fp8.py: outputs are padded, inputs are 16-bit",
)
HUMMING_MXFP8 = HUMMING_NVFP4._replace(
    name="HummingMxfp8LinearKernel", source=f"{VLLM}, kernels/linear/mxfp8/humming.py, HummingMxfp8LinearKernel"
)

MOE_NVFP4 = Kernel(
    "VLLM_CUTLASS",
    "vLLM's NVFP4 experts",
    f"{VLLM}, fused_moe/oracle/nvfp4.py, select_nvfp4_moe_backend",
    Conditions(lowest=(10, 0)),
)
MOE_MARLIN_NVFP4 = Kernel(
    "MARLIN",
    "Marlin",
    f"{VLLM}, fused_moe/oracle/nvfp4.py, select_nvfp4_moe_backend",
    Conditions(lowest=(7, 5)),
    _FP4_HALF,
    f"{VLLM}, csrc/moe/marlin_moe_wna16: the type of the inputs",
)
_MOE_MXFP4_SOURCE = f"{VLLM}, compressed_tensors_moe, CompressedTensorsW4A4Mxfp4MoEMethod"
MOE_MXFP4 = MOE_NVFP4._replace(
    title="vLLM's MXFP4 experts",
    source=_MOE_MXFP4_SOURCE,
    asks=Conditions(lowest=(10, 0), below=(11, 0)),
)
MOE_MARLIN_MXFP4 = MOE_MARLIN_NVFP4._replace(source=_MOE_MXFP4_SOURCE)
MOE_MXFP8 = MOE_NVFP4._replace(
    name="FLASHINFER_TRTLLM",
    title="FlashInfer",
    source=f"{VLLM}, fused_moe/oracle/mxfp8.py, select_mxfp8_moe_backend",
    asks=_FIRST_BLACKWELL,
)
MOE_MARLIN_MXFP8 = MOE_MARLIN_NVFP4._replace(source=f"{VLLM}, fused_moe/oracle/mxfp8.py, select_mxfp8_moe_backend")
MOE_W4A8 = Kernel(
    "CUTLASS",
    "CUTLASS W4A8",
    f"{VLLM}, fused_moe/oracle/w4a8.py, and compressed_tensors_moe_w4a8_fp8.py, create_weights",
    Conditions(lowest=(9, 0), below=(9, 1), inputs_multiple=256, outputs_multiple=256),
)

LINEAR: dict[tuple[str, List], tuple[Kernel, ...]] = {
    ("cuda", "fp8-block"): (FLASHINFER_BLOCK, DEEPGEMM_BLOCK, CUTLASS_BLOCK, MARLIN_FP8, HUMMING_FP8),
    ("cuda", "nvfp4"): (FLASHINFER_NVFP4, FLASHINFER_CUTLASS_NVFP4, CUTLASS_NVFP4, MARLIN_NVFP4, HUMMING_NVFP4),
    ("cuda", "mxfp4"): (FLASHINFER_MXFP4, MARLIN_MXFP4, HUMMING_MXFP4),
    ("cuda", "mxfp8"): (FLASHINFER_MXFP8, FLASHINFER_CUTLASS_MXFP8, MARLIN_MXFP8, HUMMING_MXFP8),
    ("cuda", "w4a8-fp8"): (CUTLASS_W4A8, HUMMING),
    ("cpu", "fp8-block"): (CPU_BLOCK_W8A8, CPU_BLOCK),
}
"""Kernels of linears, in the order in which vLLM tries them (vllm/model_executor/kernels/linear/__init__.py)."""
EXPERTS: dict[tuple[str, List], tuple[Kernel, ...]] = {
    ("cuda", "fp8-block"): (MOE_FP8, MOE_MARLIN_FP8),
    ("cuda", "nvfp4"): (MOE_NVFP4, MOE_MARLIN_NVFP4),
    ("cuda", "mxfp4"): (MOE_MXFP4, MOE_MARLIN_MXFP4),
    ("cuda", "mxfp8"): (MOE_MXFP8, MOE_MARLIN_MXFP8),
    ("cuda", "w4a8-fp8"): (MOE_W4A8,),
}
"""Kernels of experts, in that order."""
ENTRY: dict[tuple[Scheme, bool], tuple[Conditions, str]] = {
    ("fp8-block", False): (Conditions(lowest=(7, 5), inputs_multiple=FP8_BLOCK, part_multiple=FP8_BLOCK), _BLOCK_SHAPE),
    ("nvfp4", False): (
        Conditions(lowest=(7, 5)),
        f"{VLLM}, compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4.py, get_min_capability",
    ),
    ("mxfp4", False): (
        Conditions(lowest=(8, 0)),
        f"{VLLM}, compressed_tensors/schemes/compressed_tensors_w4a4_mxfp4.py, get_min_capability",
    ),
    ("mxfp8", False): (
        Conditions(lowest=(7, 5)),
        f"{VLLM}, compressed_tensors/schemes/compressed_tensors_w8a8_mxfp8.py, get_min_capability",
    ),
    ("w4a8-fp8", False): (
        Conditions(lowest=(9, 0), below=(9, 1)),
        f"{VLLM}, compressed_tensors.py, _is_fp8_w4a8_sm90: Hopper alone",
    ),
}
"""Conditions that vLLM checks before it looks for a kernel, by (scheme, of experts)."""
