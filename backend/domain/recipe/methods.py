"""The table of quantization and pruning methods: bits, groups, options with their defaults.

Data, readable without torch.

`quantize_step` answers questions about a step by this table; `step_words` has the wording of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from backend.domain.kernels.conditions import FP8_BLOCK, Scheme
from backend.domain.kernels.table import CPU_MULTIPLE
from backend.domain.model.gguf import file_types
from backend.domain.model.shapes import GROUP_SIZES


class Method(NamedTuple):
    """A quantization method. Another one is a row here and a module of that name in engines/native/methods
    (CONTRIBUTING.md)."""

    title: str
    """Its title in lists of techniques."""
    action: str
    """The words on the button that adds the step."""
    help: str
    """A line on what it does."""
    bits: tuple[int, ...]
    """Widths that it can make, the default first."""
    group_size: int | None
    """Default of weights that share a scale; None where an output channel or a matrix has one scale."""
    defaults: dict[str, Any]
    """Further options it takes (`TUNED`), with the value of an empty one."""
    source: str
    made: str = "INT{bits} ({method})"
    """The result, as plans write it."""
    activations: bool = False
    """The input becomes 8 bits or fewer too, so the matrix product runs at the 8-bit rate or above."""
    calibrated: bool = True
    """Calibration text decides what is stored, and not only the reported errors."""
    scheme: Scheme | None = None
    """The way vLLM reads the result, which decides its kernels (`domain/kernels`). Without one nothing serves the
    quantized weights."""
    alternatives: tuple[str, ...] = ("awq", "w8a8", "fp8")
    """Methods to use instead where this one is not possible, the nearest first."""
    fixed_group: int | None = None
    """Weights that share a scale where the format leaves no choice."""
    scale_bytes: int | None = None
    """Bytes of a stored scale; None: 4 with quantized activations, else 2."""
    multiple: int = CPU_MULTIPLE
    """All sizes of linears that are quantized are multiples of this; others stay 16-bit."""
    stored_bits: Mapping[int, int] = {}
    """Bits of a weight in the file by those that it is worth, where they are more."""
    zero_points: bool | None = None
    """True if groups always have zero points, False if never; None where the step chooses."""
    searches: int = 0
    """Times that all rows of a matrix meet its Gram matrix, the report left out; a job's duration depends on it."""


AUTOROUND: Literal["autoround"] = "autoround"
"""The method that learns how weights are rounded."""
QUANTIZE: dict[str, Method] = {
    "rtn": Method(
        "INT4 (round to nearest)",
        "Quantize to 4 bits (rtn)",
        "4-bit weights, each rounded to the nearest step: quick, and the mark that the others have to beat.",
        (4, 8, 3, 2),
        GROUP_SIZES[0],
        {"clip": False, "rotate": False},
        "no paper: plain rounding",
        calibrated=False,
        scheme="wNa16",
        searches=1,
    ),
    "awq": Method(
        "INT4 (AWQ)",
        "Quantize to 4 bits (awq)",
        "4-bit weights; input channels that matter are scaled up before rounding.",
        (4, 3, 2),
        GROUP_SIZES[0],
        {"clip": True, "loss_weights": False, "rotate": False},
        "Lin et al. 2023, arXiv 2306.00978",
        scheme="wNa16",
        alternatives=("w8a8", "fp8"),
        searches=11,
    ),
    "gptq": Method(
        "INT4 (GPTQ)",
        "Quantize to 4 bits (gptq)",
        "4-bit weights; columns not yet rounded make up for the error of those that are.",
        (4, 8, 3, 2),
        GROUP_SIZES[0],
        {"act_order": True, "awq_scales": False, "clip": True, "loss_weights": False, "rotate": False},
        "Frantar et al. 2022, arXiv 2210.17323",
        scheme="wNa16",
        searches=6,
    ),
    AUTOROUND: Method(
        "INT4 (AutoRound)",
        "Quantize to 4 bits (autoround)",
        "4-bit weights; how each of them is rounded is learned, layer by layer. It takes the longest.",
        (4, 8, 3, 2),
        GROUP_SIZES[0],
        {"awq_scales": True, "clip": True, "learning_steps": 200, "loss_weights": False, "rotate": False},
        "Cheng et al. 2023, arXiv 2309.05516",
        scheme="wNa16",
        searches=11,
    ),
    "w8a8": Method(
        "INT8 (W8A8)",
        "Quantize to 8 bits (w8a8)",
        "8-bit integers for weights and activations.",
        (8,),
        None,
        {"activations": "dynamic", "rotate": False},
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
        {"activations": "dynamic", "rotate": False, "strength": 0.5},
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
        "8-bit floating point for weights and activations: handles outliers, for newer GPUs.",
        (8,),
        None,
        {"activations": "dynamic", "rotate": False},
        "Micikevicius et al. 2022, arXiv 2209.05433",
        "FP8",
        activations=True,
        calibrated=False,
        scheme="fp8",
        alternatives=("w8a8", "awq"),
    ),
    "fp8_block": Method(
        "FP8 in blocks",
        "Quantize to FP8 in blocks (fp8_block)",
        "FP8 with a scale for each block of 128 x 128 weights and for each 128 inputs of a token, as in DeepSeek-V3.",
        (8,),
        None,
        {},
        "DeepSeek-AI 2024, arXiv 2412.19437, section 3.3",
        "FP8 in blocks",
        activations=True,
        calibrated=False,
        scheme="fp8-block",
        alternatives=("fp8", "w8a8", "awq"),
        fixed_group=FP8_BLOCK * FP8_BLOCK,
        multiple=FP8_BLOCK,
    ),
    "mxfp8": Method(
        "MXFP8",
        "Quantize to MXFP8 (mxfp8)",
        "FP8 in groups of 32 that share a power of two, weights and activations: for GPUs from Blackwell on.",
        (8,),
        None,
        {"rotate": False},
        "OCP Microscaling Formats 1.0; Rouhani et al. 2023, arXiv 2310.10537",
        "MXFP8",
        activations=True,
        calibrated=False,
        scheme="mxfp8",
        alternatives=("fp8", "w8a8", "awq"),
        fixed_group=32,
        scale_bytes=1,
    ),
    "w4a8_fp8": Method(
        "INT4 with FP8 activations (W4A8)",
        "Quantize to 4 bits with FP8 activations (w4a8_fp8)",
        "4-bit weights by GPTQ in groups of 128 and FP8 activations: for Hopper GPUs under load.",
        (4,),
        None,
        {"act_order": True, "awq_scales": False, "clip": True, "rotate": False},
        "Frantar et al. 2022, arXiv 2210.17323; vLLM 0.32.0, CompressedTensorsW4A8Fp8",
        "INT4 weights, FP8 activations",
        activations=True,
        scheme="w4a8-fp8",
        alternatives=("gptq", "awq", "fp8"),
        fixed_group=FP8_BLOCK,
        scale_bytes=2,
        multiple=FP8_BLOCK,
        searches=6,
    ),
    "w6a6": Method(
        "INT6 (W6A6)",
        "Quantize to 6 bits with 6-bit activations (w6a6)",
        "6-bit integers for weights, by GPTQ, and for activations: to compare with, as no engine here serves them.",
        (6,),
        None,
        {"act_order": False, "clip": True, "rotate": False},
        "Yao et al. 2022, arXiv 2206.01861, section 4",
        activations=True,
        alternatives=("w8a8", "smoothquant", "fp8", "awq"),
        searches=6,
    ),
    "w4a4": Method(
        "INT4 (W4A4)",
        "Quantize to 4 bits with 4-bit activations (w4a4)",
        "4-bit integers for weights, by GPTQ, and for activations: to compare with, as no engine here serves them.",
        (4,),
        None,
        {"act_order": False, "clip": True, "rotate": False},
        "Ashkboos et al. 2024, arXiv 2404.00456, section 5",
        activations=True,
        alternatives=("nvfp4", "awq", "gptq", "w8a8"),
        searches=6,
    ),
    "slim_llm": Method(
        "INT2 mixed (SliM-LLM)",
        "Quantize to 2 bits on average (slim_llm)",
        "2 bits a weight on average: groups of columns get a bit more or fewer by how much they matter. To compare "
        "with, as no engine serves it.",
        (2, 3),
        GROUP_SIZES[0],
        {"act_order": True, "clip": True},
        "Huang et al. 2024, arXiv 2405.14917",
        "INT{bits} on average (SliM-LLM)",
        alternatives=("gptq", "awq"),
        stored_bits={2: 3, 3: 4},
        zero_points=True,
        searches=20,
    ),
    "bitnet": Method(
        "Ternary weights (BitNet b1.58)",
        "Quantize to three values (bitnet)",
        "Each weight becomes -1, 0 or 1 times the mean of its group; made to be trained. No engine serves it.",
        (2,),
        GROUP_SIZES[0],
        {},
        "Ma et al. 2024, arXiv 2402.17764, section 2",
        "ternary weights (BitNet b1.58)",
        calibrated=False,
        alternatives=("gptq", "awq"),
        zero_points=False,
    ),
    "billm": Method(
        "1 bit (BiLLM)",
        "Quantize to about 1 bit (billm)",
        "A sign a weight, and two for columns that matter. To compare with: no format holds it, so it is stored in 16 "
        "bits.",
        (1,),
        None,
        {},
        "Huang et al. 2024, arXiv 2402.04291",
        "1 bit (BiLLM)",
        alternatives=("gptq", "awq"),
        stored_bits={1: 16},
        searches=20,
    ),
    "nvfp4": Method(
        "NVFP4",
        "Quantize to NVFP4 (nvfp4)",
        "4-bit floating point in groups of 16 with two levels of scales: for GPUs from Blackwell on.",
        (4,),
        None,
        {"activations": "dynamic", "rotate": False},
        'NVIDIA 2025, "Introducing NVFP4 for Efficient and Accurate Low-Precision Inference"',
        "NVFP4",
        activations=True,
        scheme="nvfp4",
        alternatives=("awq", "gptq", "fp8", "w8a8"),
        fixed_group=16,
        scale_bytes=1,
    ),
    "mxfp4": Method(
        "MXFP4",
        "Quantize to MXFP4 (mxfp4)",
        "4-bit floating point in groups of 32 that share a power of two: the open format, less accurate than NVFP4.",
        (4,),
        None,
        {"rotate": False},
        "OCP Microscaling Formats 1.0; Rouhani et al. 2023, arXiv 2310.10537",
        "MXFP4",
        activations=True,
        calibrated=False,
        scheme="mxfp4",
        alternatives=("nvfp4", "awq", "fp8", "w8a8"),
        fixed_group=32,
        scale_bytes=1,
    ),
    "gguf": Method(
        "GGUF (llama.cpp)",
        "Quantize to a GGUF file (gguf)",
        "One file by llama.cpp's own quantizer, served by llama.cpp; Ollama and LM Studio read such files too.",
        (4,),
        None,
        {"type": file_types.DEFAULT, "imatrix": True},
        file_types.SOURCE,
        "GGUF {type}",
        alternatives=("rtn", "awq", "w8a8"),
        searches=8,
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
"""The methods, in the order in which screens list them. Every method but `kv_cache` also takes `kv_cache: fp8`."""

GGUF: Literal["gguf"] = "gguf"
"""The method whose result is a GGUF file, which llama.cpp makes and serves."""
ORIGINAL_BITS = 16
REFUSED = Method("", "", "", (8,), None, {}, "", activations=True)
"""The row of a method that is known and not offered (`WHY_NOT`)."""
PRUNE = {
    "magnitude": "Pruning by magnitude",
    "wanda": "Pruning by Wanda",
    "sparsegpt": "Pruning by SparseGPT",
}

STRUCTURED = {
    "depth": "Fewer layers",
    "width": "Narrower layers",
    "experts": "Fewer experts",
}
"""Methods of a prune step that remove whole parts, so that a smaller dense model is left: any engine serves it."""
STRUCTURE_OPTIONS = ("cut_time", "cut_parameters", "max_bytes", "importance", "parts")
"""Fields of a prune step that only those methods take. The first three say how much is removed: one of them at most."""
TARGETS = STRUCTURE_OPTIONS[:3]
USUAL_CUT = 0.25
"""The share that is removed where a step says no target."""
Parts = Literal["mlp", "mlp+heads", "mlp+heads+hidden"]
"""Parts that become narrower: neurons of the MLP, attention heads by whole groups, channels of the hidden state."""
Importance = Literal["similarity", "loss", "gradients"]
"""Rankings of parts. Layers go by how little their output differs from their input, or by the loss without each;
neurons, heads and channels by activations alone, or by activations weighed by the gradients of the loss."""
IMPORTANCES: dict[str, tuple[Importance, ...]] = {"depth": ("similarity", "loss"), "width": ("gradients",)}
"""Rankings that a method takes; `width` without one goes by activations."""
WIDTH_FAMILIES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "cohere", "cohere2"}
)
"""Model types whose query, key, value, gate, up and down projections are matrices of their own."""
HEAD_FAMILIES = WIDTH_FAMILIES - {"qwen2"}
"""Types among these whose size of a head engines read from config.json: vLLM 0.32 divides the hidden size of a Qwen 2
by its heads."""
HIDDEN_FAMILIES = frozenset({"llama", "mistral", "qwen3"})
"""Types among these in which nothing but the norms depends on the width of the hidden state."""

GROUP_SIZE = {name: method.group_size for name, method in QUANTIZE.items() if method.group_size}
"""Default group size of the methods that quantize in groups."""
MIXABLE = tuple(name for name in GROUP_SIZE if QUANTIZE[name].zero_points is None)
"""Methods in groups beside which other precisions may stand in one model (`MIXED`)."""

TUNED = (
    "act_order",
    "awq_scales",
    "clip",
    "activations",
    "strength",
    "type",
    "imatrix",
    "learning_steps",
    "loss_weights",
    "rotate",
)
"""Fields of a quantize step that only some methods take."""

MIXED = ("target_bits", "eight_bits")
"""Fields of a quantize step that only `MIXABLE` methods take: groups may get higher precisions."""

SIXTEEN_BIT = "16-bit"
OutsideExperts = Literal["16-bit", "w8a8", "int8", "fp8", "fp8_block"]
"""The forms that linears outside of experts may get, by their methods: those that read no text and search nothing."""

NO_CACHE_SCALES = frozenset({"gpt2", "gpt_neox", "bloom", "falcon"})
"""Model types whose attention names its cache differently: no served and scored run of theirs is at hand."""

WHY_NOT = {
    ("quantize", "llm-int8"): (
        "LLM.int8() keeps outlier columns in 16 bit beside INT8 ones, and no server here runs that: vLLM 0.32.0 "
        "loads no bitsandbytes checkpoints. `smoothquant` deals with the same outliers and is served",
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
