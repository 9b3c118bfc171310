"""Small GGUF files in the forms that people meet, written by the package gguf: plain ones, scaled rotation, experts,
parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backend.domain.model.gguf.rope import llama3_factors

VOCABULARY, HIDDEN, WIDTH, LAYERS, HEADS, KV_HEADS, CONTEXT = 320, 64, 128, 2, 4, 2, 4096
SIZE = HIDDEN // HEADS
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ("▁", *LETTERS, "▁t", "he", "▁the", "in", "an", "re", "er", "on")
"""Every piece of several letters can be put together from shorter ones, as in a trained SentencePiece model."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
Tensors = dict[str, np.ndarray[Any, Any]]


def tokens() -> tuple[list[str], list[float], list[int]]:
    """A SentencePiece vocabulary: the tokens, their scores, and their kinds."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    words += [f"<spare{number}>" for number in range(VOCABULARY - len(words))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES)]
    kinds += [USER_DEFINED] * (VOCABULARY - len(kinds))
    return words, [-float(number) for number in range(VOCABULARY)], kinds


def keys(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """The keys of a sound file; `changes` are below the architecture's name, `_` for `.` doubled: `rope__freq_base`."""
    words, scores, kinds = tokens()
    own: dict[str, Any] = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": WIDTH,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": SIZE,
        "vocab_size": VOCABULARY,
    }
    own |= {name.replace("__", "."): value for name, value in changes.items()}
    return {
        "general.type": "model",
        "general.name": "Toy",
        "general.license": "apache-2.0",
        "general.file_type": 0,
        **{f"{architecture}.{name}": value for name, value in own.items()},
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def tensors(*, experts: int = 0, bias: str = "", qk_norm: bool = False, tied: bool = False, seed: int = 0) -> Tensors:
    """The tensors that `keys` ask for. `bias`: the letters of attention projections that have one (q, k, v, o)."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (VOCABULARY, HIDDEN)
    rows = {"q": HIDDEN, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE, "output": HIDDEN}
    for number in range(LAYERS):
        block = f"blk.{number}."
        shapes |= {f"{block}attn_norm.weight": (HIDDEN,), f"{block}ffn_norm.weight": (HIDDEN,)}
        shapes |= {f"{block}attn_{name}.weight": (count, HIDDEN) for name, count in rows.items()}
        shapes |= {f"{block}attn_{name}.bias": (count,) for name, count in rows.items() if name[0] in bias}
        if qk_norm:
            shapes |= {f"{block}attn_{letter}_norm.weight": (SIZE,) for letter in "qk"}
        stacked, end = ((experts,), "_exps") if experts else ((), "")
        if experts:
            shapes[f"{block}ffn_gate_inp.weight"] = (experts, HIDDEN)
        for part, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
            shapes[f"{block}ffn_{part}{end}.weight"] = (*stacked, *shape)
    dice = np.random.default_rng(seed)
    scales = {name: 0.3 if len(shape) > 1 else 0.1 for name, shape in shapes.items()}
    by_name = {name: dice.standard_normal(shape).astype(np.float32) * scales[name] for name, shape in shapes.items()}
    return {name: 1 + values if "norm" in name else values for name, values in by_name.items()}


def llama3_frequencies(factor: float = 8.0, length: int = 8192, base: float = 10000.0) -> Tensors:
    """The tensor by which Llama 3.1's files divide their rotary frequencies."""
    return {"rope_freqs.weight": np.array(llama3_factors(factor, length, base, SIZE), np.float32)}


def write(
    path: Path,
    stored: Tensors,
    values: Mapping[str, Any],
    architecture: str | None = "llama",
    *,
    quantized: bool = False,
) -> Path:
    """One file. A value of None leaves its key out; `quantized`: matrices as Q8_0. Tensors are row by row."""
    import gguf

    writer: Any = gguf.GGUFWriter(str(path), architecture or "none")
    if architecture is None:
        writer.kv_data[0].pop("general.architecture")  # parts after the first do not have it
    for key, value in values.items():
        _add(writer, key, value)
    for name, array in stored.items():
        if quantized and array.ndim > 1:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value) if value >= 0 else writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def write_parts(
    folder: Path, stored: Tensors, values: Mapping[str, Any], count: int, *, name: str = "toy", total: int | None = None
) -> list[Path]:
    """The model in `count` parts, as llama-gguf-split writes them; `total` in place of the true count of tensors."""
    names = list(stored)
    step = -(-len(names) // count)
    paths = []
    for number in range(count):
        by_name = {each: stored[each] for each in names[number * step : (number + 1) * step]}
        split = {"split.no": number, "split.count": count, "split.tensors.count": total or len(names)}
        path = folder / f"{name}-{number + 1:05}-of-{count:05}.gguf"
        own = {**values, **split} if number == 0 else split
        paths.append(write(path, by_name, own, "llama" if number == 0 else None))
    return paths
