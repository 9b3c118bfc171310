"""vLLM 0.32's kernels for quantized linears and experts: what each requires, and its source.

`asks` are the conditions that vLLM checks when it chooses; `needs` are those without which the kernel computes wrongly.
tests/integration/vllm/test_kernel_table.py holds `asks` and the orders to vLLM's own functions.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from backend.domain.kernels.conditions import CHANNEL, Conditions, Scheme

VLLM = "vLLM 0.32.0"
CPU_MULTIPLE = 32
"""Inputs and outputs that vLLM's 4-bit kernel for processors takes are multiples of this (mixed_precision/cpu.py)."""
FP8_ARITHMETIC = (8, 9)
"""The compute capability from which GPUs multiply in FP8; below it only weights are FP8 (compressed_tensors.py)."""
HUMMING_FIRST = ((9, 0),)
"""Compute capabilities where vLLM tries Humming before Marlin (utils/humming/priority.py)."""
INSTALLED = frozenset({"humming-kernels", "flashinfer-python"})
"""Optional packages that the lock of the GPU environment has. A test holds this to the lock."""

HALF = frozenset({"float16", "bfloat16"})
MARLIN_GROUPS = frozenset({CHANNEL, 32, 64, 128})


class Kernel(NamedTuple):
    """`name` is the class in vLLM; `title` is for people."""

    name: str
    title: str
    source: str
    asks: Conditions = Conditions()
    needs: Conditions = Conditions()
    needs_source: str = ""

    @property
    def optional(self) -> bool:
        return bool(self.asks.package)


_MIXED, _SCALED = "kernels/linear/mixed_precision", "kernels/linear/scaled_mm"
_HUMMING = "humming-kernels"
_HUMMING_NEEDS = Conditions(dtypes=HALF, least_group=16)
_HUMMING_SOURCE = "humming-kernels 0.1.17, HummingKernel: 256 / bits of an input"

CUTLASS_W4A8 = Kernel(
    "CutlassW4A8LinearKernel",
    "CUTLASS W4A8",
    f"{VLLM}, {_MIXED}/cutlass.py, CutlassW4A8LinearKernel",
    Conditions(
        lowest=(9, 0),
        below=(9, 1),
        types=frozenset({"int4"}),
        dtypes=frozenset({"bfloat16"}),
        groups=frozenset({128}),
        inputs_multiple=128,
        outputs_multiple=128,
    ),
)
MACHETE = Kernel(
    "MacheteLinearKernel",
    "Machete",
    f"{VLLM}, {_MIXED}/machete.py, MacheteLinearKernel, and machete_utils.py, check_machete_supports_shape",
    Conditions(
        lowest=(9, 0),
        below=(9, 1),
        types=frozenset({"uint4", "uint8", "uint4b8", "uint8b128"}),
        groups=frozenset({CHANNEL, 64, 128}),
        inputs_multiple=64,
        outputs_multiple=128,
    ),
    Conditions(dtypes=HALF),
    "machete_utils.py, query_machete_supported_group_sizes",
)
MARLIN = Kernel(
    "MarlinLinearKernel",
    "Marlin",
    f"{VLLM}, {_MIXED}/marlin.py, MarlinLinearKernel, and marlin_utils.py, MARLIN_SUPPORTED_GROUP_SIZES",
    Conditions(
        lowest=(7, 5),
        types=frozenset({"uint4", "uint4b8", "uint8b128"}),
        groups=MARLIN_GROUPS,
        even_groups="device",
        spans=True,
    ),
    Conditions(dtypes=HALF),
    f"{VLLM}, csrc/quantization/marlin, marlin_gemm: the type of the inputs",
)
CONCH = Kernel(
    "ConchLinearKernel",
    "Conch",
    f"{VLLM}, {_MIXED}/conch.py, ConchLinearKernel",
    Conditions(
        lowest=(8, 0),
        types=frozenset({"uint4", "uint8", "uint4b8", "uint8b128"}),
        groups=frozenset({CHANNEL, 128}),
        package="conch-triton-kernels",
    ),
)
EXLLAMA = Kernel(
    "ExllamaLinearKernel",
    "Exllama",
    f"{VLLM}, {_MIXED}/exllama.py, ExllamaLinearKernel",
    Conditions(
        types=frozenset({"uint4b8", "uint8b128"}),
        dtypes=frozenset({"float16"}),
        grouped=True,
        even_groups="all",
        packed_outputs=True,
    ),
    Conditions(group_multiple=32, group_block=128, divides_block=True),
    f"{VLLM}, csrc/quantization/gptq/q_gemm.cu: the scale changes at most once in 32 inputs, counted from each 128th",
)
TRITON_W4A16 = Kernel(
    "TritonW4A16LinearKernel",
    "Triton",
    f"{VLLM}, {_MIXED}/triton_w4a16.py, TritonW4A16LinearKernel",
    Conditions(
        types=frozenset({"uint4", "uint4b8"}),
        dtypes=HALF,
        groups=frozenset({CHANNEL, 32, 64, 128, 256}),
        whole_group=True,
        even_groups="device",
        outputs_multiple=8,
    ),
)
HUMMING = Kernel(
    "HummingLinearKernel",
    "Humming",
    f"{VLLM}, {_MIXED}/humming.py, HummingLinearKernel",
    Conditions(lowest=(7, 5), package=_HUMMING),
    _HUMMING_NEEDS,
    _HUMMING_SOURCE,
)
DYNAMIC_4BIT = Kernel(
    "Dynamic4bitLinearKernel",
    "KleidiAI W4A8",
    f"{VLLM}, {_MIXED}/dynamic_4bit.py, Dynamic4bitLinearKernel",
    Conditions(types=frozenset({"int4"}), even_groups="all"),
)
ZENTORCH_W4A16 = Kernel(
    "ZentorchWNA16LinearKernel",
    "zentorch",
    f"{VLLM}, {_MIXED}/zentorch.py, ZentorchWNA16LinearKernel",
    Conditions(types=frozenset({"uint4", "uint4b8"}), even_groups="device", package="zentorch"),
)
_CPU_WNA16 = Conditions(
    types=frozenset({"uint4", "uint4b8"}), group_multiple=2, inputs_multiple=CPU_MULTIPLE, outputs_multiple=CPU_MULTIPLE
)
CPU_W4A16 = Kernel(
    "CPUWNA16LinearKernel",
    "vLLM's CPU kernel",
    f"{VLLM}, {_MIXED}/cpu.py, CPUWNA16LinearKernel",
    _CPU_WNA16,
    Conditions(even_groups="device"),
    "the stored scales of a group serve a whole number of groups",
)
CPU_W4A8 = CPU_W4A16._replace(
    title="vLLM's AMX kernel, W4A8",
    asks=_CPU_WNA16._replace(feature="amx_int8", dtypes=frozenset({"bfloat16"})),
    needs=Conditions(even_groups="device", group_multiple=4, group_block=128),
    needs_source=f"{VLLM}, csrc/cpu/sgl-kernels/gemm_int4.cpp: four inputs an instruction, blocks of 128 inputs",
)
"""The same class in vLLM as above; with AMX it rounds bfloat16 inputs to 8 bits (process_weights_after_loading)."""

CUTLASS_INT8 = Kernel(
    "CutlassInt8ScaledMMLinearKernel",
    "CUTLASS",
    f"{VLLM}, {_SCALED}/cutlass.py, CutlassInt8ScaledMMLinearKernel",
    needs=Conditions(below=(10, 0), dtypes=HALF),
    needs_source="vLLM issue 54311: its INT8 kernel is not built for compute capability 10.0 and above",
)
TRITON_INT8 = Kernel(
    "TritonInt8ScaledMMLinearKernel",
    "Triton",
    f"{VLLM}, {_SCALED}/triton.py, TritonInt8ScaledMMLinearKernel",
)
HUMMING_INT8 = Kernel(
    "HummingInt8ScaledMMLinearKernel",
    "Humming",
    f"{VLLM}, {_SCALED}/humming.py, HummingInt8ScaledMMLinearKernel",
    Conditions(lowest=(7, 5), package=_HUMMING),
    _HUMMING_NEEDS,
    _HUMMING_SOURCE,
)
ZENTORCH_INT8 = Kernel(
    "ZentorchInt8ScaledMMLinearKernel",
    "zentorch",
    f"{VLLM}, {_SCALED}/zentorch.py, ZentorchInt8ScaledMMLinearKernel",
    Conditions(activations=frozenset({"dynamic"}), package="zentorch"),
)
CPU_INT8 = Kernel(
    "CPUInt8ScaledMMLinearKernel",
    "vLLM's CPU kernel",
    f"{VLLM}, {_SCALED}/cpu.py, CPUInt8ScaledMMLinearKernel",
)

_FP8_GPU = Conditions(lowest=FP8_ARITHMETIC)
_STATIC, _DYNAMIC = frozenset({"static"}), frozenset({"dynamic"})
FLASHINFER_FP8 = Kernel(
    "FlashInferFP8ScaledMMLinearKernel",
    "FlashInfer",
    f"{VLLM}, {_SCALED}/flashinfer.py, FlashInferFP8ScaledMMLinearKernel",
    Conditions(lowest=(10, 0), activations=_STATIC, package="flashinfer-python"),
    Conditions(dtypes=HALF),
    "its output is 16-bit",
)
CUTLASS_FP8 = Kernel(
    "CutlassFP8ScaledMMLinearKernel",
    "CUTLASS",
    f"{VLLM}, {_SCALED}/cutlass.py, CutlassFP8ScaledMMLinearKernel",
    _FP8_GPU,
    Conditions(dtypes=HALF),
    f"{VLLM}, _custom_ops.py, cutlass_scaled_mm",
)
B12X_FP8 = Kernel(
    "B12xTensorFP8ScaledMMLinearKernel",
    "b12x",
    f"{VLLM}, {_SCALED}/b12x.py, B12xTensorFP8ScaledMMLinearKernel",
    Conditions(activations=_STATIC, dtypes=HALF, inputs_multiple=32, package="b12x"),
)
TENSOR_FP8 = Kernel(
    "PerTensorTorchFP8ScaledMMLinearKernel",
    "PyTorch",
    f"{VLLM}, {_SCALED}/pytorch.py, PerTensorTorchFP8ScaledMMLinearKernel",
    _FP8_GPU._replace(activations=_STATIC),
)
CHANNEL_FP8 = Kernel(
    "ChannelWiseTorchFP8ScaledMMLinearKernel",
    "PyTorch",
    f"{VLLM}, {_SCALED}/pytorch.py, ChannelWiseTorchFP8ScaledMMLinearKernel",
    _FP8_GPU._replace(activations=_DYNAMIC),
)
MARLIN_FP8 = Kernel(
    "MarlinFP8ScaledMMLinearKernel",
    "Marlin",
    f"{VLLM}, {_SCALED}/marlin.py, MarlinFP8ScaledMMLinearKernel",
    Conditions(lowest=(7, 5)),
    Conditions(dtypes=HALF),
    f"{VLLM}, csrc/quantization/marlin, marlin_gemm: the type of the inputs",
)
HUMMING_FP8 = Kernel(
    "HummingFP8ScaledMMLinearKernel",
    "Humming",
    f"{VLLM}, {_SCALED}/humming.py, HummingFP8ScaledMMLinearKernel",
    Conditions(lowest=(7, 5), package=_HUMMING),
    _HUMMING_NEEDS,
    _HUMMING_SOURCE,
)
CPU_FP8_W8A8 = Kernel(
    "CPUFP8W8A8ScaledMMLinearKernel",
    "vLLM's AMX kernel",
    f"{VLLM}, {_SCALED}/cpu.py, CPUFP8W8A8ScaledMMLinearKernel",
    Conditions(outputs_multiple=32, feature="amx_fp8"),
)
CPU_FP8_TENSOR = Kernel(
    "CPUFp8PerTensorScaledMMLinearKernel",
    "vLLM's AMX kernel",
    f"{VLLM}, {_SCALED}/cpu.py, CPUFp8PerTensorScaledMMLinearKernel",
    Conditions(activations=_STATIC, dtypes=frozenset({"bfloat16", "float32"}), outputs_multiple=32, feature="amx_int8"),
)

_ORACLE = "fused_moe/oracle/int_wna16.py, select_wna16_moe_backend"
_GROUPED = Conditions(grouped=True)
_GROUPED_SOURCE = f"{VLLM}, compressed_tensors_moe_wna16.py: only Marlin's experts have one scale an output channel"
MOE_FLASHINFER = Kernel(
    "FLASHINFER_TRTLLM",
    "FlashInfer",
    f"{VLLM}, {_ORACLE}",
    Conditions(
        lowest=(10, 0),
        below=(11, 0),
        types=frozenset({"uint4b8"}),
        groups=frozenset({32}),
        package="flashinfer-python",
    ),
)
MOE_MARLIN = Kernel(
    "MARLIN",
    "Marlin",
    f"{VLLM}, {_ORACLE}, and marlin_utils.py, check_moe_marlin_supports_config",
    Conditions(
        lowest=(7, 5),
        types=frozenset({"uint4", "uint4b8", "uint8b128"}),
        groups=MARLIN_GROUPS,
        even_groups="device",
        outputs_multiple=128,
    ),
    Conditions(dtypes=HALF),
    f"{VLLM}, csrc/moe/marlin_moe_wna16: the type of the inputs",
)
MOE_TRITON = Kernel(
    "TRITON",
    "Triton",
    f"{VLLM}, {_ORACLE}",
    Conditions(types=frozenset({"uint4", "uint4b8", "uint8b128"})),
    _GROUPED,
    _GROUPED_SOURCE,
)
MOE_HUMMING = Kernel(
    "HUMMING",
    "Humming",
    f"{VLLM}, {_ORACLE}, and fused_humming_moe.py, _is_supported_wna16_weight_key",
    Conditions(lowest=(7, 5), types=frozenset({"uint4b8", "uint8b128"}), package=_HUMMING),
    _HUMMING_NEEDS._replace(grouped=True),
    _GROUPED_SOURCE,
)
MOE_HUMMING_ZERO = MOE_HUMMING._replace(
    asks=Conditions(lowest=(7, 5), types=frozenset({"uint4"}), groups=frozenset({32}), package=_HUMMING)
)
"""The kernel above with zero points, which vLLM allows it for groups of 32 only."""
MOE_INT8 = Kernel(
    "TRITON",
    "Triton",
    f"{VLLM}, fused_moe/oracle/int8.py, select_int8_moe_backend",
    Conditions(lowest=(7, 5)),
)
MOE_FP8 = Kernel(
    "TRITON",
    "vLLM's FP8 experts",
    f"{VLLM}, fused_moe/oracle/fp8.py, select_fp8_moe_backend",
    _FP8_GPU,
)
MOE_MARLIN_FP8 = Kernel(
    "MARLIN",
    "Marlin",
    f"{VLLM}, fused_moe/oracle/fp8.py, select_fp8_moe_backend",
    Conditions(lowest=(7, 5)),
    Conditions(dtypes=HALF),
    f"{VLLM}, csrc/moe/marlin_moe_wna16: the type of the inputs",
)

List = Literal["wNa16", "int8", "fp8", "fp8-weights", "fp8-block", "nvfp4", "mxfp4", "mxfp8", "w4a8-fp8"]
LINEAR: dict[tuple[str, List], tuple[Kernel, ...]] = {
    ("cuda", "wNa16"): (CUTLASS_W4A8, MACHETE, MARLIN, CONCH, EXLLAMA, TRITON_W4A16, HUMMING),
    ("cuda", "int8"): (CUTLASS_INT8, TRITON_INT8, HUMMING_INT8),
    ("cuda", "fp8"): (FLASHINFER_FP8, CUTLASS_FP8, B12X_FP8, TENSOR_FP8, CHANNEL_FP8, MARLIN_FP8, HUMMING_FP8),
    ("cuda", "fp8-weights"): (HUMMING_FP8, MARLIN_FP8),
    ("cpu", "wNa16"): (DYNAMIC_4BIT, ZENTORCH_W4A16, CPU_W4A8, CPU_W4A16),
    ("cpu", "int8"): (ZENTORCH_INT8, CPU_INT8),
    ("cpu", "fp8"): (CPU_FP8_W8A8, CPU_FP8_TENSOR, TENSOR_FP8, CHANNEL_FP8),
}
"""Kernels of linears, in the order in which vLLM tries them: `_POSSIBLE_KERNELS` in
vllm/model_executor/kernels/linear/__init__.py."""
EXPERTS: dict[tuple[str, List], tuple[Kernel, ...]] = {
    ("cuda", "wNa16"): (MOE_FLASHINFER, MOE_MARLIN, MOE_TRITON, MOE_HUMMING, MOE_HUMMING_ZERO),
    ("cuda", "int8"): (MOE_INT8,),
    ("cuda", "fp8"): (MOE_FP8, MOE_MARLIN_FP8),
    ("cuda", "fp8-weights"): (MOE_MARLIN_FP8,),
}
"""Kernels of experts, in that order. `quantize_step.unserved_reason` has those of processors."""

ENTRY: dict[tuple[Scheme, bool], tuple[Conditions, str]] = {
    ("wNa16", False): (
        Conditions(lowest=(7, 5)),
        f"{VLLM}, compressed_tensors/schemes/compressed_tensors_wNa16.py, get_min_capability",
    ),
    ("int8", False): (
        Conditions(lowest=(7, 5)),
        f"{VLLM}, compressed_tensors/schemes/compressed_tensors_w8a8_int8.py, get_min_capability",
    ),
    ("fp8", False): (
        Conditions(lowest=(7, 5)),
        f"{VLLM}, compressed_tensors/schemes/compressed_tensors_w8a16_fp8.py, get_min_capability",
    ),
    ("int8", True): (
        Conditions(activations=_DYNAMIC),
        f"{VLLM}, compressed_tensors_moe.py, get_moe_method: no static INT8 experts",
    ),
}
"""Conditions that vLLM checks before it looks for a kernel, by (scheme, of experts)."""
AUTOAWQ = (
    Conditions(groups=MARLIN_GROUPS),
    f"{VLLM}, auto_awq.py, AutoAWQConfig: Marlin's groups; its own kernel has no others (awq_triton.py)",
)
"""The conditions of AutoAWQ's format on a GPU."""
