"""Plans the conversion of a GGUF file: the fields of config.json, and for each tensor the names it gets in the model
folder.

Nothing is left over: a tensor that no row here names is refused, and so is one that is missing or misshapen. Tensor
names are llama.cpp's (`LLM_TENSOR_NAMES` in src/llama-arch.cpp; which of them an architecture has: src/models/*.cpp).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.domain.errors import InvalidModel
from backend.domain.frozen import Frozen
from backend.domain.model.gguf.keys import EQUAL, check_keys, not_carried
from backend.domain.model.gguf.rope import FREQUENCIES, rope_parameters

MOST_PARTS = 10_000
"""Layers, and heads of one."""
MOST_EXPERTS = 65_536
"""Experts of all layers together."""
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""`general.architecture` of what can be imported. Mistral's and Mixtral's files say llama."""
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""transformers' `model_type` -> the class of the model."""

Shape = tuple[int, ...]


class CarriedTensor(Frozen):
    """One tensor of the file. `shape` is row by row, as numpy has it."""

    name: str
    becomes: tuple[str, ...]
    """Its names in the model folder: one, or one for each expert of a stack."""
    shape: Shape
    turned_heads: int = 0
    """Heads whose rows llama.cpp stores in pairs for rotation, to be put back in halves; 0: rows are as they were."""


class Conversion(Frozen):
    """`config` are the fields of config.json beside those of the tokenizer."""

    model_type: str
    config: dict[str, Any]
    tensors: tuple[CarriedTensor, ...]

    @property
    def architecture(self) -> str:
        return CLASSES[self.model_type]

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def largest_part(self) -> int:
        """Elements of what is in memory at once while the result is checked: one layer, or the embedding."""
        layers: dict[str, int] = {}
        for tensor in self.tensors:
            part = ".".join(tensor.name.split(".")[:2])
            layers[part] = layers.get(part, 0) + math.prod(tensor.shape)
        return max(layers.values())


def plan(
    file: str,
    architecture: str,
    values: Mapping[str, Any],
    arrays: Mapping[str, int],
    tensors: Mapping[str, Shape],
    rope_factors: Sequence[float],
) -> Conversion:
    """Return how a file of these keys and tensors is converted. `arrays` are lengths, `tensors` shapes row by row.

    Raises InvalidModel, one sentence, for a key or tensor that is not carried, is missing or is unsound.
    """
    # Every key is carried, changes nothing, or is refused.
    check_keys(file, architecture, values, arrays)
    config = _config(file, architecture, values, arrays, tensors)
    experts = config.get("num_local_experts", 0)
    config["rope_parameters"] = rope_parameters(
        file, architecture, values, config["head_dim"], config["max_position_embeddings"], rope_factors
    )
    model_type = "mixtral" if experts else architecture
    # Every tensor that the keys ask for is there, in its shape. The first that is missing ends the loop: a file that
    # states many layers and has few makes no long list.
    carried = []
    for tensor in planned_tensors(model_type, config, tensors):
        if tensor.name not in tensors:
            raise InvalidModel(f"{file} has no tensor {tensor.name}, which its keys ask for: download it again.")
        if tensors[tensor.name] != tensor.shape:
            raise InvalidModel(
                f"{file} has the tensor {tensor.name} in the shape {_sides(tensors[tensor.name])} where its keys ask "
                f"for {_sides(tensor.shape)}: import the original model."
            )
        carried.append(tensor)
    # No tensor is left over.
    left = tensors.keys() - {tensor.name for tensor in carried} - ({FREQUENCIES} if rope_factors else set())
    if left:
        name = _plain(min(left))
        raise InvalidModel(
            f"{file} has the tensor {name}, which this import does not carry: import the original model."
        )
    return Conversion(model_type=model_type, config=config, tensors=tuple(carried))


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "?", name)[:80]


def _sides(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def _config(
    file: str, architecture: str, values: Mapping[str, Any], arrays: Mapping[str, int], tensors: Mapping[str, Shape]
) -> dict[str, Any]:
    """The plain fields. Raises InvalidModel where one is missing, out of bounds, or contradicts another."""

    def whole(name: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        value = values.get(f"{architecture}.{name}", default)
        if type(value) is not int or not 0 < value <= most:
            raise InvalidModel(f"{file} has no sound `{architecture}.{name}`: import the original model.")
        return value

    # Sizes, and what is computed where a key is left out.
    heads, hidden = whole("attention.head_count", most=MOST_PARTS), whole("embedding_length")
    vocabulary = arrays.get("tokenizer.ggml.tokens", 0)
    if not vocabulary:
        raise InvalidModel(f"{file} has no tokenizer: import the original model.")
    config: dict[str, Any] = {
        "num_hidden_layers": whole("block_count", most=MOST_PARTS),
        "max_position_embeddings": whole("context_length"),
        "hidden_size": hidden,
        "intermediate_size": whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": whole("attention.head_count_kv", heads, MOST_PARTS),
        "head_dim": whole("attention.key_length", hidden // heads),
        "vocab_size": vocabulary,
        "hidden_act": "silu",
        "rms_norm_eps": _epsilon(file, architecture, values),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if heads % config["num_key_value_heads"] or config["head_dim"] % 2:
        raise InvalidModel(f"{file} has no sound `{architecture}.attention.head_count_kv`: import the original model.")
    # Keys that repeat a field.
    for name, field in EQUAL.items():
        if values.get(f"{architecture}.{name}", config[field]) != config[field]:
            raise not_carried(file, f"{architecture}.{name}", values)
    if values.get(f"{architecture}.vocab_size", vocabulary) != vocabulary:
        raise InvalidModel(
            f"{file} says `{architecture}.vocab_size`, but has {vocabulary} tokens: import the original model."
        )
    window = values.get(f"{architecture}.attention.sliding_window", 0)
    if window and not (type(window) is int and window >= config["max_position_embeddings"]):
        raise not_carried(file, f"{architecture}.attention.sliding_window", values)
    return config | _experts(file, architecture, values, whole) | _biases(architecture, tensors)


def _epsilon(file: str, architecture: str, values: Mapping[str, Any]) -> float:
    epsilon = values.get(f"{architecture}.attention.layer_norm_rms_epsilon")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        key = f"{architecture}.attention.layer_norm_rms_epsilon"
        raise InvalidModel(f"{file} has no sound `{key}`: import the original model.")
    return float(f"{epsilon:.7g}")  # the file has a 32-bit float


def _experts(file: str, architecture: str, values: Mapping[str, Any], whole: Any) -> dict[str, Any]:
    """Experts are Mixtral's, under the architecture llama. Raises InvalidModel for those of another architecture."""
    if not values.get(f"{architecture}.expert_count"):
        if values.get(f"{architecture}.expert_used_count"):
            raise not_carried(file, f"{architecture}.expert_used_count", values)
        return {}
    if architecture != "llama":
        raise not_carried(file, f"{architecture}.expert_count", values)
    count = whole("expert_count", most=MOST_EXPERTS // values[f"{architecture}.block_count"])
    return {
        "num_local_experts": count,
        "num_experts_per_tok": whole("expert_used_count", most=count),
        "sliding_window": None,
    }


def _biases(architecture: str, tensors: Mapping[str, Shape]) -> dict[str, Any]:
    """Llama's optional biases. Other architectures have theirs always, or never."""
    if architecture != "llama":
        return {}
    attention, feed_forward = "blk.0.attn_output.bias" in tensors, "blk.0.ffn_down.bias" in tensors
    return {"attention_bias": attention, "mlp_bias": feed_forward}


def planned_tensors(
    model_type: str, config: Mapping[str, Any], present: Mapping[str, Shape]
) -> Iterator[CarriedTensor]:
    """Yield every tensor that a file with this config has; `present` are those of the file, where there is one."""

    def plain(name: str, becomes: str, *shape: int, turned: int = 0) -> CarriedTensor:
        return CarriedTensor(name=name, becomes=(becomes,), shape=shape, turned_heads=turned)

    # 1. Tensors outside of the layers.
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield plain("token_embd.weight", "model.embed_tokens.weight", vocabulary, hidden)
    yield plain("output_norm.weight", "model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        yield plain("output.weight", "lm_head.weight", vocabulary, hidden)
    # 2. Each layer: norms, attention, feed-forward or experts.
    for number in range(config["num_hidden_layers"]):
        prefix, block = f"model.layers.{number}.", f"blk.{number}."
        yield plain(f"{block}attn_norm.weight", f"{prefix}input_layernorm.weight", hidden)
        yield plain(f"{block}ffn_norm.weight", f"{prefix}post_attention_layernorm.weight", hidden)
        yield from _attention(model_type, config, block, prefix)
        if model_type == "mixtral":
            yield from _mixture(config, block, prefix, present)
        else:
            yield from _feed_forward(config, block, prefix)


def _attention(model_type: str, config: Mapping[str, Any], block: str, prefix: str) -> Iterator[CarriedTensor]:
    """Projections [out, in], their biases, and Qwen3's norms of a head."""
    # 1. What the family has: rows in another order, biases.
    hidden, size = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    turned = model_type in {"llama", "mixtral"}
    biased = {"qwen2": "qkv"}.get(model_type, "qkvo" if config.get("attention_bias") else "")
    # 2. Queries, keys and values.
    for letter, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        rows = count if turned and letter != "v" else 0
        own, name = f"{block}attn_{letter}", f"{prefix}self_attn.{letter}_proj"
        yield CarriedTensor(
            name=f"{own}.weight", becomes=(f"{name}.weight",), shape=(count * size, hidden), turned_heads=rows
        )
        if letter in biased:
            yield CarriedTensor(name=f"{own}.bias", becomes=(f"{name}.bias",), shape=(count * size,), turned_heads=rows)
        if model_type == "qwen3" and letter != "v":
            norm = f"{prefix}self_attn.{letter}_norm.weight"
            yield CarriedTensor(name=f"{own}_norm.weight", becomes=(norm,), shape=(size,))
    # 3. The output.
    own, name = f"{block}attn_output", f"{prefix}self_attn.o_proj"
    yield CarriedTensor(name=f"{own}.weight", becomes=(f"{name}.weight",), shape=(hidden, heads * size))
    if "o" in biased:
        yield CarriedTensor(name=f"{own}.bias", becomes=(f"{name}.bias",), shape=(hidden,))


def _feed_forward(config: Mapping[str, Any], block: str, prefix: str) -> Iterator[CarriedTensor]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    for part, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
        own, name = f"{block}ffn_{part}", f"{prefix}mlp.{part}_proj"
        yield CarriedTensor(name=f"{own}.weight", becomes=(f"{name}.weight",), shape=shape)
        if config.get("mlp_bias"):
            yield CarriedTensor(name=f"{own}.bias", becomes=(f"{name}.bias",), shape=shape[:1])


def _mixture(
    config: Mapping[str, Any], block: str, prefix: str, present: Mapping[str, Shape]
) -> Iterator[CarriedTensor]:
    """The router and the experts, stacked in one tensor or, in older files, one tensor each."""
    hidden, width, count = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    router = f"{prefix}block_sparse_moe.gate.weight"
    yield CarriedTensor(name=f"{block}ffn_gate_inp.weight", becomes=(router,), shape=(count, hidden))
    matrices = (("gate", "w1", (width, hidden)), ("up", "w3", (width, hidden)), ("down", "w2", (hidden, width)))
    for part, letter, shape in matrices:
        names = tuple(f"{prefix}block_sparse_moe.experts.{number}.{letter}.weight" for number in range(count))
        if f"{block}ffn_{part}.0.weight" in present:
            for number, name in enumerate(names):
                yield CarriedTensor(name=f"{block}ffn_{part}.{number}.weight", becomes=(name,), shape=shape)
        else:
            yield CarriedTensor(name=f"{block}ffn_{part}_exps.weight", becomes=names, shape=(count, *shape))
