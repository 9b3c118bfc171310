"""Checkpoints whose weights are quantized, in the layouts that people publish, and others that are easily misread.

Each layout packs its integers by code of its own, apart from the readers it tests, and says what every matrix stands
for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.cases.models import edit, llama, put_tokenizer, rewrite

if TYPE_CHECKING:
    import torch

SMALL: dict[str, Any] = {"template": None, "hidden_size": 128, "intermediate_size": 256}
"""Sizes of the smallest Llama whose matrices have more than one block of 128 x 128."""
ENDING = "_proj.weight"
"""What the names of a Llama's linears inside layers end in."""


class Stored(NamedTuple):
    """A matrix as it is stored, by local names, and what it stands for, fp32 [out, in]."""

    parts: dict[str, torch.Tensor]
    weight: torch.Tensor


Layout = Callable[["torch.Tensor"], Stored]


def fp8(weight: torch.Tensor, shared: str = "matrix", *, name: str = "weight_scale") -> Stored:
    """FP8 E4M3 with one scale a `matrix`, an `output` or a `block` of 128 x 128."""
    import torch

    rows, columns = weight.shape
    size = {"matrix": (rows, columns), "output": (1, columns), "block": (128, 128)}[shared]
    scale = torch.empty(-(-rows // size[0]), -(-columns // size[1]))
    stored, dense = torch.empty(rows, columns).to(torch.float8_e4m3fn), torch.empty(rows, columns)
    for i in range(len(scale)):
        for j in range(scale.shape[1]):
            place = slice(i * size[0], (i + 1) * size[0]), slice(j * size[1], (j + 1) * size[1])
            scale[i, j] = weight[place].abs().max() / 448
            stored[place] = (weight[place] / scale[i, j]).to(torch.float8_e4m3fn)
            dense[place] = stored[place].float() * scale[i, j]
    return Stored({"weight": stored, name: scale.reshape(()) if shared == "matrix" else scale}, dense)


def int8(weight: torch.Tensor) -> Stored:
    """INT8 with one scale an output."""
    import torch

    scale = weight.abs().amax(1, keepdim=True) / 127
    numbers = (weight / scale).round()
    return Stored({"weight": numbers.to(torch.int8), "weight_scale": scale}, numbers * scale)


def _grouped(weight: torch.Tensor, bits: int, size: int, symmetric: bool) -> tuple[Any, Any, Any]:
    """Unsigned numbers [out, in], zero points and fp16 scales [out, groups]."""
    import torch

    groups = weight.reshape(len(weight), -1, size)
    most = (1 << bits) - 1
    if symmetric:
        scale = (2 * groups.abs().amax(2) / most).half()
        zeros = torch.full(scale.shape, 1 << (bits - 1))
    else:
        scale = ((groups.amax(2) - groups.amin(2)) / most).half()
        zeros = (-groups.amin(2) / scale.float()).round().clamp(1, most).long()
    numbers = (groups / scale.float()[..., None] + zeros[..., None]).round().clamp(0, most).long()
    return numbers.reshape(weight.shape), zeros, scale


def _packed(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers [rows, columns] as int32 [rows, columns x bits / 32], the first in the lowest bits."""
    import numpy
    import torch

    each = 32 // bits
    words = numpy.zeros((numbers.shape[0], numbers.shape[1] // each), numpy.uint32)
    for place in range(each):
        words |= numbers[:, place::each].numpy().astype(numpy.uint32) << numpy.uint32(place * bits)
    return torch.from_numpy(words.view(numpy.int32))


def gptq(
    weight: torch.Tensor,
    *,
    bits: int = 4,
    size: int = 64,
    symmetric: bool = True,
    ordered: bool = False,
    minus: int = 1,
) -> Stored:
    """AutoGPTQ's tensors; `ordered`: groups are of columns that do not lie side by side; `minus` is what zero points
    lack."""
    import torch

    columns = weight.shape[1]
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(5)) if ordered else torch.arange(columns)
    numbers, zeros, scale = _grouped(weight[:, order], bits, size, symmetric)
    index = torch.empty(columns, dtype=torch.int32)
    index[order] = (torch.arange(columns) // size).int()
    placed = torch.empty_like(numbers)
    placed[:, order] = numbers
    chosen = index.long()
    dense = (placed - zeros[:, chosen]).float() * scale.float()[:, chosen]
    parts = {
        "qweight": _packed(placed, bits).T.contiguous(),
        "qzeros": _packed(zeros.T.contiguous() - minus, bits),
        "scales": scale.T.contiguous(),
        "g_idx": index,
    }
    return Stored(parts, dense)


def awq(weight: torch.Tensor, size: int = 64) -> Stored:
    """AutoAWQ's GEMM: outputs in the order 0 2 4 6 1 3 5 7."""
    numbers, zeros, scale = _grouped(weight, 4, size, symmetric=False)

    def interleaved(values: torch.Tensor) -> torch.Tensor:
        eights = values.T.reshape(values.shape[1], -1, 8)
        return _packed(eights[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(values.shape[1], -1), 4)

    each = weight.shape[1] // zeros.shape[1]
    dense = (numbers - zeros.repeat_interleave(each, 1)).float() * scale.float().repeat_interleave(each, 1)
    return Stored(
        {"qweight": interleaved(numbers), "qzeros": interleaved(zeros), "scales": scale.T.contiguous()}, dense
    )


def store(folder: Path, layout: Layout, announcement: dict[str, Any] | None = None, file: str = "config.json") -> Path:
    """Store every linear inside the layers of the plain model in `folder` as `layout` has it, and announce it.

    In config.json the announcement is `quantization_config`, elsewhere the whole `file`.
    """

    def changed(tensors: dict[str, Any]) -> dict[str, Any]:
        result = {}
        for name, tensor in tensors.items():
            parts = layout(tensor.float()).parts if name.endswith(ENDING) else {}
            result |= {name.removesuffix("weight") + local: each for local, each in parts.items()} or {name: tensor}
        return result

    rewrite(folder, changed)
    if announcement is not None and file == "config.json":
        edit(folder / file, quantization_config=announcement)
    elif announcement is not None:
        (folder / file).write_text(json.dumps(announcement), encoding="utf-8")
    return folder


def dense(folder: Path, layout: Layout) -> Path:
    """The same model in plain weights: what the stored ones stand for."""
    rewrite(
        folder, lambda tensors: {n: layout(t.float()).weight if n.endswith(ENDING) else t for n, t in tensors.items()}
    )
    return folder


MODELOPT: dict[str, Any] = {
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]},
}
GPTQ_CONFIG: dict[str, Any] = {"bits": 4, "group_size": 64, "damp_percent": 0.01, "desc_act": False, "sym": True}


def modelopt_fp8(weight: torch.Tensor) -> Stored:
    """ModelOpt's FP8: one scale a matrix, and one for the inputs."""
    import torch

    stored = fp8(weight)
    return stored._replace(parts={**stored.parts, "input_scale": torch.tensor(0.01)})


def modelopt_model(folder: Path) -> Path:
    """A ModelOpt FP8 checkpoint that hf_quant_config.json alone announces."""
    return store(llama(folder), modelopt_fp8, MODELOPT, "hf_quant_config.json")


def gptq_model(folder: Path) -> Path:
    """An older AutoGPTQ checkpoint: quantize_config.json alone announces it."""
    return store(llama(folder), gptq, GPTQ_CONFIG, "quantize_config.json")


def _zeros(model: Any) -> None:
    """Groups, a row and a head of zeros, and a row of numbers that 16 bits barely hold."""
    first, second = model.model.layers
    first.mlp.down_proj.weight.data[:, :128] = 0
    first.mlp.down_proj.weight.data[5] = 0
    first.self_attn.q_proj.weight.data[:64] = 0
    second.mlp.up_proj.weight.data[3] = 1e-38


def zero_groups(folder: Path) -> Path:
    """Whole groups of weights are zero."""
    return llama(folder, template=None, change=_zeros)


def _qwen_moe(folder: Path, change: Callable[[Any], None] | None = None, **sizes: Any) -> Path:
    """A Qwen 3 mixture of eight experts."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=2048,
        decoder_sparse_step=1,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        **{"mlp_only_layers": [], **sizes},
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3MoeForCausalLM(config).bfloat16()
    if change is not None:
        change(model)
    model.save_pretrained(folder)
    return put_tokenizer(folder, None)


def dead_experts(folder: Path) -> Path:
    """A router that never chooses three of the eight experts."""

    def change(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.gate.weight.data[5:] = 0
            layer.mlp.gate.weight.data[:5] *= 50

    return _qwen_moe(folder, change)


def first_layer_dense(folder: Path) -> Path:
    """A mixture whose first layer has no experts (`mlp_only_layers`)."""
    return _qwen_moe(folder, mlp_only_layers=[0])


def head_missing(folder: Path) -> Path:
    """An output head that is not tied to the embedding, and not stored."""
    llama(folder)
    rewrite(folder, lambda tensors: {name: each for name, each in tensors.items() if name != "lm_head.weight"})
    return folder


def head_tied_but_other(folder: Path) -> Path:
    """A tied output head that is stored as another matrix."""
    import torch

    llama(folder, tie_word_embeddings=True)
    head = torch.randn(1024, 256, generator=torch.Generator().manual_seed(7)).bfloat16() * 0.02
    rewrite(folder, lambda tensors: {**tensors, "lm_head.weight": head})
    return folder


def _biases(model: Any) -> None:
    """Biases that are not zero, and channels that stand out so that AWQ scales them."""
    import torch

    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.5).to(parameter.dtype)
    for layer in model.model.layers:
        layer.input_layernorm.weight.data[::17] *= 20
        layer.post_attention_layernorm.weight.data[::13] *= 20


def biases(folder: Path, dtype: str = "bfloat16") -> Path:
    """Every linear has a bias."""
    return llama(folder, template=None, dtype=dtype, change=_biases, attention_bias=True, mlp_bias=True)


def large_numbers(folder: Path) -> Path:
    """fp32 weights with one that float16 cannot hold."""

    def change(model: Any) -> None:
        model.model.layers[0].mlp.down_proj.weight.data[0, 0] = 1e6

    return llama(folder, template=None, dtype="float32", change=change)


def not_a_number(folder: Path) -> Path:
    """One weight is NaN."""

    def change(model: Any) -> None:
        model.model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")

    return llama(folder, template=None, change=change)
