"""The head of a GGUF file: keys, values and the table of tensors, read within bounds and before anything else touches it.

GGUF 2 and 3 (github.com/ggml-org/ggml, docs/gguf.md). Weights are not read; no library is needed.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import InvalidModel
from backend.domain.model.facts import ModelCard, QuantizedBefore

SUFFIX = ".gguf"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""`general.architecture` of what can be imported -> the class in transformers. Mistral's files say llama."""
MOST_BYTES, MOST_KEYS, MOST_TENSORS, MOST_VALUES = 64 * 2**20, 4096, 65_536, 4_000_000
BITS_16 = 16
MOST_PARTS = 10_000
"""Layers, and heads of one."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136), 30: ("BF16", 1, 2),
}  # fmt: skip
"""ggml's number -> name, elements a block, bytes a block."""
_QUANTIZATION = re.compile(r"[-._](I?Q\d\w*|BF16|F16|F32)$", re.IGNORECASE)


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    """The fastest dimension first."""
    kind: int
    offset: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        _, block, size = _TYPES[self.kind]
        return self.elements // block * size


class Head(NamedTuple):
    """`values` of the keys that are no arrays; `counts` of those that are. `sha256` of the head, which pins the file."""

    path: Path
    values: dict[str, Any]
    counts: dict[str, int]
    tensors: tuple[Tensor, ...]
    bytes: int
    """Of the head itself."""
    sha256: str

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    @property
    def licence(self) -> str | None:
        found = self.values.get("general.license")
        return found if isinstance(found, str) and found else None

    @property
    def begins(self) -> bool:
        """Whether texts begin with the token for it; a tokenizer of the SentencePiece kind does where nothing is said."""
        return bool(self.values.get("tokenizer.ggml.add_bos_token", self.values.get("tokenizer.ggml.model") == "llama"))

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def quantized_before(self) -> QuantizedBefore | None:
        """The type that most of the weights are in; None where that has 16 bits or more."""
        counted: Counter[int] = Counter()
        for tensor in self.tensors:
            counted[tensor.kind] += tensor.elements
        name, block, size = _TYPES[max(counted, key=lambda kind: (counted[kind], kind))]
        bits = size * 8 / block
        return None if bits >= BITS_16 else QuantizedBefore(format=name, block=block, bits=bits)


def name_of(path: Path) -> str:
    """`SmolLM2-135M-Instruct.Q4_1.gguf` -> `SmolLM2-135M-Instruct`."""
    return _QUANTIZATION.sub("", path.stem) or path.stem


def read_head(path: Path) -> Head:
    """Raises InvalidModel in one sentence: no GGUF, cut short, out of bounds, or of an architecture that is not converted."""
    try:
        size = path.stat().st_size
        with path.open("rb") as source:
            start = source.read(MOST_BYTES)
    except OSError as error:
        raise InvalidModel(f"{path.name} cannot be read ({error.strerror}): check the path and its permissions.") from None
    try:
        head = _Reader(path, start).head()
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
        raise InvalidModel(f"{path.name} is cut short or damaged: its head ends in the middle of a value.") from None
    _check(head, size)
    return head


def _check(head: Head, size: int) -> None:
    name = head.path.name
    if head.architecture not in ARCHITECTURES:
        shown = re.sub(r"[^\w.-]", "?", head.architecture)[:40] or "no architecture"
        raise InvalidModel(f"{name} is of the architecture `{shown}`: GGUF files of {', '.join(ARCHITECTURES)} can be imported.")
    if any(tensor.name == "rope_freqs.weight" for tensor in head.tensors):
        raise InvalidModel(
            f"{name} has scaled rotary frequencies (rope_freqs.weight), which its reader drops: import the original."
        )
    unknown = next((tensor for tensor in head.tensors if tensor.kind not in _TYPES), None)
    if unknown is not None:
        raise InvalidModel(
            f"{name} has the tensor {unknown.name[:80]} in a type ({unknown.kind}) that is not read: import the original."
        )
    if not head.tensors or any(head.bytes + tensor.offset + tensor.bytes > size for tensor in head.tensors):
        raise InvalidModel(f"{name} is cut short: tensors lie beyond its end, download it again.")
    if not head.counts.get("tokenizer.ggml.tokens"):
        raise InvalidModel(f"{name} has no tokenizer: import the original.")


class _Reader:
    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content, self.at = path, content, 0
        self.passed = 0
        """Values of arrays so far."""

    def head(self) -> Head:
        if self.content[:4] != b"GGUF":
            raise InvalidModel(f"{self.path.name} is not a GGUF file: it does not begin with its mark.")
        self.at = 4
        version = self._number("I")
        if version not in {2, 3}:
            raise InvalidModel(f"{self.path.name} is GGUF of version {version}: 2 and 3 are read, convert it with llama.cpp.")
        tensors, keys = self._bounded(MOST_TENSORS), self._bounded(MOST_KEYS)
        values, counts = {}, {}
        for _ in range(keys):
            key, kind = self._text(), self._number("I")
            if kind == _ARRAY:
                counts[key] = self._pass_array()
            else:
                values[key] = self._value(kind)
        found = tuple(self._tensor() for _ in range(tensors))
        return Head(self.path, values, counts, found, self.at, hashlib.sha256(self.content[: self.at]).hexdigest())

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.content, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def _bounded(self, most: int) -> int:
        count = int(self._number("Q"))
        if count > most:
            raise InvalidModel(f"{self.path.name} states {count:,} entries where {most:,} are the most: it is damaged.")
        return count

    def _text(self) -> str:
        size = self._bounded(MOST_BYTES)
        found = self.content[self.at : self.at + size]
        if len(found) < size:
            raise IndexError
        self.at += size
        return found.decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind not in _SCALARS:
            raise InvalidModel(f"{self.path.name} has a value of an unknown type ({kind}): it is damaged.")
        return self._number(_SCALARS[kind])

    def _pass_array(self) -> int:
        kind, count = self._number("I"), self._bounded(MOST_VALUES - self.passed)
        self.passed += count
        if kind == _STRING:
            for _ in range(count):
                self.at += 8 + struct.unpack_from("<Q", self.content, self.at)[0]
        elif kind in _SCALARS:
            self.at += count * struct.calcsize(f"<{_SCALARS[kind]}")
        else:
            raise InvalidModel(f"{self.path.name} has an array of an unknown type ({kind}): it is damaged.")
        return count

    def _tensor(self) -> Tensor:
        name, dimensions = self._text(), self._number("I")
        if dimensions > 4:
            raise InvalidModel(f"{self.path.name} has a tensor of {dimensions} dimensions: it is damaged.")
        shape = tuple(int(self._number("Q")) for _ in range(dimensions))
        return Tensor(name, shape, self._number("I"), int(self._number("Q")))


def card(head: Head, name: str) -> ModelCard:
    """What the head says of the model before it is converted; `bytes` are of the 16-bit weights that it will have.

    Raises InvalidModel where a figure is missing or out of bounds.
    """
    kind = head.architecture

    def figure(key: str, default: int | None = None) -> int:
        found = head.values.get(f"{kind}.{key}", default)
        most = MOST_PARTS if key in {"block_count", "attention.head_count", "attention.head_count_kv"} else 2**31 - 1
        if not isinstance(found, int) or not 0 < found <= most:
            raise InvalidModel(f"{head.path.name} has no sound `{kind}.{key}`: import the original.")
        return found

    heads, hidden = figure("attention.head_count"), figure("embedding_length")
    tied = all(tensor.name != "output.weight" for tensor in head.tensors)
    return ModelCard(
        id=name, origin="imported", architecture=ARCHITECTURES[kind], model_type=kind,
        layers=figure("block_count"), hidden_size=hidden, intermediate_size=figure("feed_forward_length"), heads=heads,
        kv_heads=figure("attention.head_count_kv", heads), head_dim=figure("attention.key_length", hidden // heads),
        vocabulary=head.counts["tokenizer.ggml.tokens"], max_positions=figure("context_length"), dtype="bfloat16",
        tied_embeddings=tied, parameters=head.parameters, gated_mlp=True, path=str(head.path), revision=head.sha256,
        weights_bytes=2 * head.parameters, tokenizer_hash=None, licence=head.licence, quantized_before=head.quantized_before,
    )  # fmt: skip
