"""Writes GGUF files and the packages and index that ship them, in their published forms, from a model folder: for
tests."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

BLOCK, ALIGNMENT = 32, 32
F32, Q4_1 = 0, 3
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
Weights = dict[str, Any]


def write(path: Path, folder: Path, *, architecture: str | None = None, extra: dict[str, Any] | None = None) -> Weights:
    """The model in `folder` with its matrices in Q4_1; answers with the weights that the file stands for, float32 by
    name."""
    config = json.loads((folder / "config.json").read_text())
    kind = architecture or config["model_type"]
    stored, intended = _tensors(folder, config)
    values = _values(folder, config, kind) | (extra or {})
    head, offset = b"", 0
    for name, (data, shape, number) in stored.items():
        head += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", number, offset)
        offset += _padded(len(data))
    content = b"GGUF" + struct.pack("<IQQ", 3, len(stored), len(values))
    content += b"".join(_text(key) + _value(value) for key, value in values.items()) + head
    body = b"".join(data.ljust(_padded(len(data)), b"\0") for data, _, _ in stored.values())
    path.write_bytes(content.ljust(_padded(len(content)), b"\0") + body)
    return intended


def wheel(
    folder: Path, model: Path, name: str = "tiny-gguf", version: str = "1.0", *, member: str = "tiny_gguf/model.gguf"
) -> Path:
    """A wheel whose code says so if it ever runs."""
    plain = name.replace("-", "_")
    path = folder / f"{plain}-{version}-py3-none-any.whl"
    about = f"{plain}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(model, member)
        archive.writestr(f"{plain}/__init__.py", f"open({str(folder / 'ran')!r}, 'w')\n")
        pages = "Project-URL: Homepage, https://tiny.example\nProject-URL: License, https://tiny.example/licence\n"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: Apache-2.0\n"
        archive.writestr(f"{about}/METADATA", head + pages)
        archive.writestr(f"{about}/LICENSE", "Apache License\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


@contextmanager
def index(root: Path, *wheels: Path, sha256: str | None = None) -> Iterator[str]:
    """The address of a simple index (PEP 503) on loopback; `sha256` in place of the true one."""
    for each in wheels:
        page = root / "simple" / each.name.split("-")[0].replace("_", "-")
        page.mkdir(parents=True, exist_ok=True)
        digest = sha256 or hashlib.sha256(each.read_bytes()).hexdigest()
        (page / each.name).write_bytes(each.read_bytes())
        (page / "index.html").write_text(f'<!DOCTYPE html><a href="{each.name}#sha256={digest}">{each.name}</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        return


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(
            _text(each) if kind == 8 else struct.pack("<i", each) for each in value
        )
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<If", 6, value)


def _values(folder: Path, config: dict[str, Any], kind: str) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"] | {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    tokens = sorted(words, key=lambda word: words[word])
    by_name = {added["content"]: 3 if added["special"] else 4 for added in tokenizer["added_tokens"]}
    return {
        "general.architecture": kind,
        "general.name": "Tiny",
        "general.license": "apache-2.0",
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{kind}.attention.key_length": config["head_dim"],
        f"{kind}.vocab_size": config["vocab_size"],
        f"{kind}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [by_name.get(word, 1) for word in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }


def _tensors(folder: Path, config: dict[str, Any]) -> tuple[dict[str, tuple[bytes, tuple[int, ...], int]], Weights]:
    from safetensors.torch import load_file

    stored, intended = {}, {}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        turned = next((count for part, count in heads.items() if f".{part}.weight" in name), 0)
        if config["model_type"] == "llama" and turned:
            values = _turned(values, turned, 2)
        data, restored, number = _packed(values)
        stored[_renamed(name)] = (data, values.shape, number)
        rows = values.shape[0] // turned // 2 if config["model_type"] == "llama" and turned else 0
        intended[name] = _turned(restored, turned, rows) if rows else restored
    return stored, intended


def _renamed(name: str) -> str:
    stem, _, end = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{end}"
    return f"{NAMES[stem]}.{end}"


def _turned(values: Any, heads: int, halves: int) -> Any:
    """llama.cpp's order of the rows of a head, and back: of `halves` parts, their rows in turn."""
    shape = (heads, halves, values.shape[0] // heads // halves, *values.shape[1:])
    return values.reshape(shape).swapaxes(1, 2).reshape(values.shape)


def _packed(values: Any) -> tuple[bytes, Any, int]:
    """The bytes, what they stand for, and ggml's number of the type: Q4_1 of a matrix, float32 of a vector."""
    if values.ndim == 1:
        return values.astype("<f4").tobytes(), values, F32
    blocks = values.reshape(-1, BLOCK)
    low = blocks.min(1, keepdims=True).astype("<f2")
    step = np.maximum((blocks.max(1, keepdims=True) - low.astype("f4")) / 15, 1e-4).astype("<f2")
    numbers = np.clip(np.rint((blocks - low.astype("f4")) / step.astype("f4")), 0, 15).astype("u1")
    nibbles = numbers[:, : BLOCK // 2] | numbers[:, BLOCK // 2 :] << 4
    data = np.concatenate([step.view("u1"), low.view("u1"), nibbles], axis=1)
    restored = numbers.astype("f4") * step.astype("f4") + low.astype("f4")
    return data.tobytes(), restored.reshape(values.shape), Q4_1
