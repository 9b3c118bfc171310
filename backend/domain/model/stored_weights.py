"""Finds how a checkpoint stores its weights, from the names, dtypes and shapes of its tensors alone.

A tensor of a 16- or 32-bit float dtype without a quantizer's names beside it is plain, and nothing else is. Knows no
files, no configuration and no arithmetic. The names are those of the formats' own writers: compressed-tensors 0.17,
AutoGPTQ 0.7, GPTQModel 5, AutoAWQ 0.2.9, ModelOpt 0.41, bitsandbytes 0.49, transformers 5 (`fp8`, `mxfp4`), MLX 0.29.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from backend.domain.frozen import Frozen

FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
TRANSPOSED = frozenset({"gpt2"})
"""Families of the native engine that store a weight [in, out]."""
BLOCK = (128, 128)
"""Rows and columns that share a scale where nothing says otherwise (DeepSeek-V3, 2024, section 3.3)."""
COMPRESSED_TENSORS = "compressed-tensors"


class Tensor(Protocol):
    """One entry of a header."""

    @property
    def dtype(self) -> str:
        """The dtype as safetensors writes it: BF16, F8_E4M3."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, outermost first."""


class StoredWeights(Frozen):
    """Weights of a checkpoint that are not plain 16- or 32-bit floats."""

    layout: str
    """The layout in words: FP8 with one scale per matrix."""
    method: str
    """The announced name, else the usual name of the layout: gptq, fp8."""
    bits: int
    """Bits per weight; the largest if they differ."""
    announced: str | None = None
    """The file that announces it; None where nothing does."""
    refusal: str | None = None
    """Why no reader here gives its weights exactly; None where one does."""

    @property
    def readable(self) -> bool:
        """Return whether its weights can be dequantized exactly, and so be optimized and scored."""
        return self.refusal is None

    @property
    def sentence(self) -> str:
        """For the card, the plan and the artifact."""
        where = f"announced in {self.announced}" if self.announced else "announced nowhere"
        head = f"Its weights are stored as {self.layout} ({where})"
        if self.refusal is not None:
            return f"{head} and cannot be optimized or scored here: {self.refusal}. Start from the 16-bit original."
        return (
            f"{head}. They are dequantized exactly before anything is computed from them: what is called the original "
            "is the quantized model, not the model as it was trained."
        )


class StoredKind(NamedTuple):
    """One way in which a module's weight is stored.

    `name` tells kinds apart; `method` is the usual `quant_method`; `parts` are all the local names that the reader
    knows, and None where there is no reader.
    """

    name: str
    words: str
    method: str
    bits: int
    parts: frozenset[str] | None = None


class StoredModule(NamedTuple):
    """A module with a weight that is not plain: its kind, and its tensors by local name."""

    kind: StoredKind
    tensors: Mapping[str, Tensor]
    detail: str = ""
    """Detail that the kind does not fix: how scales are shared."""
    bits: int | None = None
    """Bits per weight if the kind does not fix them."""

    @property
    def words(self) -> str:
        """The kind with its detail."""
        return f"{self.kind.words}{self.detail}"


ASIDE = frozenset({"input_scale", "input_global_scale", "input_zero_point", "output_scale", "k_scale", "v_scale"})
"""Beside a weight but no part of it: how inputs and the key-value cache are rounded."""
FP8 = StoredKind("fp8", "FP8", "fp8", 8, frozenset({"weight", "weight_scale", "weight_scale_inv"}))
INT8 = StoredKind("int8", "INT8", "int8", 8, frozenset({"weight", "weight_scale", "weight_zero_point"}))
PACKED = StoredKind(
    "packed",
    "packed integers of compressed-tensors",
    COMPRESSED_TENSORS,
    4,
    frozenset({"weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"}),
)
GPTQ = StoredKind("gptq", "GPTQ", "gptq", 4, frozenset({"qweight", "qzeros", "scales", "g_idx"}))
AWQ = StoredKind("awq", "AWQ (GEMM)", "awq", 4, frozenset({"qweight", "qzeros", "scales"}))
CACHE = StoredKind(
    "cache", "16-bit weights with scales of an FP8 key-value cache", COMPRESSED_TENSORS, 16, frozenset({"weight"})
)
NVFP4 = StoredKind(
    "nvfp4", "NVFP4", COMPRESSED_TENSORS, 4, frozenset({"weight_packed", "weight_scale", "weight_global_scale"})
)
MXFP4 = StoredKind("mxfp4", "MXFP4", COMPRESSED_TENSORS, 4, frozenset({"weight_packed", "weight_scale"}))
MXFP8 = StoredKind("mxfp8", "MXFP8", COMPRESSED_TENSORS, 8, frozenset({"weight", "weight_scale"}))
OF_COMPRESSED_TENSORS = (PACKED, NVFP4, MXFP4, MXFP8)
"""Kinds that are read only where compressed-tensors is announced, which says what their numbers mean."""
READABLE = (FP8, INT8, *OF_COMPRESSED_TENSORS, GPTQ, AWQ, CACHE)
OTHERWISE_PACKED = StoredKind("qweight", "packed integers (`qweight`) of a layout that no reader here knows", "gptq", 4)
MODELOPT_NVFP4 = StoredKind("nvfp4-modelopt", "NVFP4 of ModelOpt", "modelopt", 4)
MXFP4_BLOCKS = StoredKind("mxfp4-blocks", "MXFP4 in blocks of fused experts", "mxfp4", 4)
MLX = StoredKind("mlx", "MLX integers", "mlx", 4)
BITSANDBYTES_4 = StoredKind("bnb4", "bitsandbytes 4-bit", "bitsandbytes", 4)
BITSANDBYTES_8 = StoredKind("bnb8", "bitsandbytes 8-bit", "bitsandbytes", 8)
MARLIN = StoredKind("marlin", "Marlin's own packing", "gptq", 4)
SCALED_INPUTS = StoredKind("scaled-inputs", "weights whose inputs are scaled first (`pre_quant_scale`)", "modelopt", 8)
NAMED = (
    ({"codes", "codebooks"}, StoredKind("aqlm", "AQLM codebooks", "aqlm", 2)),
    ({"Qidxs"}, StoredKind("quip", "QuIP# codebooks", "quip", 2)),
    ({"trellis"}, StoredKind("exl3", "EXL3", "exl3", 4)),
    ({"q_weight"}, StoredKind("exl2", "EXL2", "exl2", 4)),
    ({"W_q"}, StoredKind("hqq", "HQQ", "hqq", 4)),
    ({"weight", "weight_scales"}, StoredKind("eetq", "EETQ", "eetq", 8)),
    ({"B", "s"}, MARLIN),
    ({"weight.SCB"}, BITSANDBYTES_8),
    ({"SCB"}, BITSANDBYTES_8),
    ({"weight.absmax"}, BITSANDBYTES_4),
    ({"absmax"}, BITSANDBYTES_4),
    ({"pre_quant_scale"}, SCALED_INPUTS),
)
"""Layouts that their names alone give away, and no reader here knows."""
TELLING = frozenset[str]().union(*(names for names, _ in NAMED)) - {"weight"}
UNKNOWN = "unknown"

MARKS = frozenset(
    {
        *(
            "weight_scale",
            "weight_scale_inv",
            "weight_scale_2",
            "weight_scales",
            "weight_global_scale",
            "weight_packed",
        ),
        *("weight_shape", "weight_zero_point", "weight_g_idx", "weight_format", "qweight", "qzeros", "scales", "g_idx"),
        *("absmax", "quant_map", "nested_absmax", "nested_quant_map", "SCB", "W_q", "Qidxs", "codebooks", "trellis"),
        *("q_weight", "q_scale", "q_scale_max", "q_groups", "q_perm", "q_invperm", "pre_quant_scale"),
        *("input_scale", "input_global_scale", "input_zero_point", "output_scale", "k_scale", "v_scale"),
    }
)
"""Last parts of names that only quantizers give. torchao puts a colon into them."""
COMPUTED = "rotary frequencies, which are computed from config.json"
MASK = "the causal mask of older GPT-2, GPT-J and GPT-NeoX checkpoints"
COUNTER = "a counter of older transformers or of a vision tower"
HARMLESS: dict[str, tuple[frozenset[str], str]] = {
    "bias": (frozenset({"attn", "attention"}), MASK),
    "masked_bias": (frozenset({"attn", "attention"}), MASK),
    "inv_freq": (frozenset({"rotary_emb"}), COMPUTED),
    "cos_cached": (frozenset({"rotary_emb"}), COMPUTED),
    "sin_cached": (frozenset({"rotary_emb"}), COMPUTED),
    "position_ids": (frozenset(), COUNTER),
    "token_type_ids": (frozenset(), COUNTER),
    "num_batches_tracked": (frozenset(), COUNTER),
    "relative_position_index": (frozenset(), COUNTER),
    "causal_mask": (frozenset({"attn", "attention", "self_attn"}), MASK),
}
"""Buffers that older writers stored and every loader computes anew: the modules that have them (none: any), and what
they are."""
MASK_DIMENSIONS = 4
"""Dimensions of a causal mask, which some families call `bias`; a bias has one."""


def is_harmless(name: str, tensor: Tensor | None = None) -> bool:
    """Return whether a stored tensor is a buffer that no loader reads. `tensor` tells a causal mask from a bias of the
    same name."""
    module, _, local = name.rpartition(".")
    if local not in HARMLESS:
        return False
    owners, _ = HARMLESS[local]
    if local == "bias" and (tensor is None or len(tensor.shape) != MASK_DIMENSIONS):
        return False
    return not owners or module.rpartition(".")[2] in owners


def is_plain(name: str, tensor: Tensor) -> bool:
    """Return whether a checkpoint that was never quantized could hold the tensor."""
    return (tensor.dtype in FLOATS and not is_marked(name)) or is_harmless(name, tensor)


def is_marked(name: str) -> bool:
    """Return whether only a quantizer gives such a name."""
    local = name.rpartition(".")[2]
    return local in MARKS or ":" in local


def modules(
    tensors: Mapping[str, Tensor], block: tuple[int, int] = BLOCK, *, transposed: bool = False
) -> dict[str, StoredModule]:
    """Every module that is not plain, by its name; `block` is what FP8 scales of two dimensions are for.

    `transposed`: the family stores its weights [in, out] where they are not packed (GPT-2's Conv1D).
    """
    marked = {_owner(name)[0] for name, tensor in tensors.items() if not is_plain(name, tensor)}
    tensors_by_owner: dict[str, dict[str, Tensor]] = {owner: {} for owner in marked}
    for name, tensor in tensors.items():
        owner, local = _owner(name)
        if owner in marked and not is_harmless(name, tensor):
            tensors_by_owner[owner][local] = tensor
    return {owner: _module(parts, block, transposed) for owner, parts in tensors_by_owner.items()}


def _owner(name: str) -> tuple[str, str]:
    """The module that a tensor belongs to, and its name there; bitsandbytes hangs its parts on the weight."""
    module, dot, inside = name.partition(".weight.")
    if dot:
        return module, f"weight.{inside}"
    module, _, local = name.rpartition(".")
    return module, local


def _module(parts: Mapping[str, Tensor], block: tuple[int, int], transposed: bool) -> StoredModule:
    """Return the kind of one module from its tensors."""
    # 1. Kinds that the names of their tensors tell.
    if not TELLING.isdisjoint(parts):
        for names, kind in NAMED:
            if names <= parts.keys():
                return StoredModule(kind, parts)
    if any(name.endswith("_blocks") for name in parts):
        return StoredModule(MXFP4_BLOCKS, parts)
    if "qweight" in parts:
        return _module_of_qweight(parts)
    # 2. Packed weights, by dtype and scales.
    if "weight_packed" in parts:
        if parts["weight_packed"].dtype == "I32":
            return StoredModule(PACKED, parts) if {"weight_scale", "weight_shape"} <= parts.keys() else _unknown(parts)
        return StoredModule(NVFP4 if parts.keys() & {"weight_global_scale", "input_global_scale"} else MXFP4, parts)
    # 3. Weights of their own name: plain with scales of the cache, or quantized.
    weight = parts.get("weight")
    if weight is None or weight.dtype in FLOATS:
        quantized = parts.keys() & {"k_scale", "v_scale"} and not beyond(CACHE, parts)
        return StoredModule(CACHE, parts) if quantized else _unknown(parts)
    return _module_of_weight(weight, parts, block, transposed)


def _module_of_qweight(parts: Mapping[str, Tensor]) -> StoredModule:
    """GPTQ packs along the inputs, AWQ along the outputs; the zero points of both along the outputs."""
    shapes = [parts[name].shape if name in parts else () for name in ("qweight", "qzeros", "scales")]
    words = parts["qweight"].dtype == "I32" and all(len(shape) == 2 for shape in shapes)
    if not words or parts["qzeros"].dtype != "I32" or parts["scales"].dtype not in FLOATS:
        return StoredModule(OTHERWISE_PACKED, parts)
    (rows, columns), (groups, zeros), (scales, outputs) = shapes
    if groups != scales or not zeros or not outputs:
        return StoredModule(OTHERWISE_PACKED, parts)
    if columns == outputs and zeros * 32 % outputs == 0 and zeros * 32 // outputs in {2, 4, 8}:
        bits = zeros * 32 // outputs
        return StoredModule(GPTQ, parts, f", {bits} bits", bits)
    if columns == zeros and columns * 8 == outputs and rows % scales == 0:
        return StoredModule(AWQ, parts)
    return StoredModule(OTHERWISE_PACKED, parts)


def _module_of_weight(
    weight: Tensor, parts: Mapping[str, Tensor], block: tuple[int, int], transposed: bool
) -> StoredModule:
    """A weight of a dtype that is no plain float."""
    if weight.dtype in {"U8", "F4"} and parts.keys() & {"weight_scale_2", "weight_global_scale"}:
        return StoredModule(MODELOPT_NVFP4, parts)
    if weight.dtype == "F8_E4M3" and "weight_scale" in parts and parts["weight_scale"].dtype == "U8":
        return StoredModule(MXFP8, parts)
    if weight.dtype == "U32" and "scales" in parts:
        return StoredModule(MLX, parts)
    kind = {"F8_E4M3": FP8, "F8_E5M2": FP8, "I8": INT8}.get(weight.dtype)
    scales = parts.keys() & {"weight_scale", "weight_scale_inv"}
    if kind is None or len(scales) != 1 or len(weight.shape) != 2:
        return _unknown(parts)
    detail = shared(weight.shape, parts[min(scales)], None if kind is INT8 else block, transposed=transposed)
    return StoredModule(kind, parts, f" with one scale {detail}") if detail else _unknown(parts)


def shared(
    weight: tuple[int, ...], scale: Tensor, block: tuple[int, int] | None, *, transposed: bool = False
) -> str | None:
    """Return what one number of `scale` is for: `a matrix`, `an output`, `a block of 128 x 128`; None where it is not
    clear.

    `weight` is the shape of a matrix. Without a `block`, scales of two dimensions are for groups along the inputs.
    """
    # 1. One scale in all, or one an output.
    if scale.dtype not in FLOATS | {"F8_E8M0"}:
        return None
    rows, columns = weight
    if all(size == 1 for size in scale.shape):
        return "a matrix"
    outputs = columns if transposed else rows
    if scale.shape in {(outputs,), (outputs, 1)}:
        return "an output"
    # 2. Scales in two dimensions: blocks where they are known, else groups along the inputs.
    if transposed or len(scale.shape) != 2:
        return None
    if block is not None:
        blocks = (-(-rows // block[0]), -(-columns // block[1]))
        return f"a block of {block[0]} x {block[1]}" if scale.shape == blocks else None
    groups = scale.shape[1]
    return f"a group of {columns // groups}" if scale.shape[0] == rows and groups and columns % groups == 0 else None


def _unknown(parts: Mapping[str, Tensor]) -> StoredModule:
    """Named by what is not plain in it."""
    odd = sorted(
        f"`{local}` in {tensor.dtype}"
        for local, tensor in parts.items()
        if tensor.dtype not in FLOATS or is_marked(local)
    )
    eight = all(not tensor.dtype.startswith(("U", "F4")) for tensor in parts.values())
    return StoredModule(
        StoredKind(UNKNOWN, f"a layout that is not known here ({', '.join(odd)})", UNKNOWN, 8 if eight else 4), parts
    )


def beyond(kind: StoredKind, parts: Mapping[str, Tensor]) -> set[str]:
    """Tensors of a module that a reader of this kind would not read."""
    return set(parts) - (kind.parts or frozenset()) - ASIDE - {"bias"}
