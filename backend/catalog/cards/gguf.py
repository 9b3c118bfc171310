"""The heads of GGUF files: keys, values and the table of tensors, read within bounds before anything else touches them.

GGUF 2 and 3 (github.com/ggml-org/ggml, docs/gguf.md). Weights are not read. Read by hand, not with the gguf package:
its reader takes 8 s and 640 MB for a head of 150,000 tokens (0.04 s here) and cannot read a head without the data after
it, which is what a hub sends.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from backend.catalog.cards import gguf_parts
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.model.facts import ModelCard, QuantizedBefore
from backend.domain.model.gguf import export
from backend.domain.model.gguf.conversion import ARCHITECTURES, MOST_PARTS, Conversion, plan
from backend.domain.model.gguf.keys import QUANTIZATION_VERSION, STRUCTURAL, not_carried
from backend.domain.model.gguf.pretokenizers import tokenizer_plan
from backend.domain.model.gguf.rope import FREQUENCIES

SUFFIX, ORIGINAL = export.SUFFIX, export.FOLDER
"""The folder, in that of a model made from a GGUF file, that keeps the file itself."""
MOST_BYTES, MOST_KEYS, MOST_TENSORS, MOST_VALUES = 64 * 2**20, 4096, 65_536, 4_000_000
BITS_16 = 16
ALIGNMENT = 32
"""GGUF_DEFAULT_ALIGNMENT."""
NO_MODEL = {
    "adapter": "an adapter (LoRA)",
    "mmproj": "a projector of a vision model (mmproj)",
    "imatrix": "an importance matrix (imatrix)",
}
"""`general.type` of what is no model."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
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
        """Size of the tensor's data. Raises InvalidModel if rows end within a block."""
        name, block, size = _TYPES[self.kind]
        if self.shape and self.shape[0] % block:
            raise InvalidModel(
                f"The tensor {_shown(self.name)} has rows that are no whole blocks of {name}: the file is damaged."
            )
        return self.elements // block * size


class Head(NamedTuple):
    """`values` of the keys that are no arrays; `counts` of those that are. `sha256` of the head, which pins the
    file."""

    path: Path
    values: dict[str, Any]
    counts: dict[str, int]
    tensors: tuple[Tensor, ...]
    bytes: int
    """Size of the head in bytes."""
    sha256: str

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    @property
    def data_offset(self) -> int:
        """Position that the tensors' offsets count from: the end of the head, aligned."""
        return -(-self.bytes // self.alignment) * self.alignment

    @property
    def alignment(self) -> int:
        """Alignment of tensor data in bytes. Raises InvalidModel if it is no power of two."""
        stated = self.values.get("general.alignment", ALIGNMENT)
        if type(stated) is not int or not 0 < stated <= MOST_BYTES or stated & (stated - 1):
            raise InvalidModel(f"{self.path.name} has no sound `general.alignment`: it is damaged, download it again.")
        return stated


class Model(NamedTuple):
    """A whole model, in one file or in parts. The first part has the keys."""

    parts: tuple[Head, ...]
    conversion: Conversion
    bytes: int
    """Size of all parts in bytes."""

    @property
    def path(self) -> Path:
        return self.parts[0].path

    @property
    def values(self) -> dict[str, Any]:
        return self.parts[0].values

    @property
    def sha256(self) -> str:
        """Digest of the head; with several parts, of their digests in order."""
        digests = [part.sha256 for part in self.parts]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    @property
    def licence(self) -> str | None:
        stated = self.values.get("general.license")
        return stated if isinstance(stated, str) and stated else None

    @property
    def parameters(self) -> int:
        return self.conversion.parameters

    @property
    def tensor_types(self) -> set[str]:
        """Names of the types that its tensors have."""
        return {_TYPES[tensor.kind][0] for part in self.parts for tensor in part.tensors}

    @property
    def quantized_before(self) -> QuantizedBefore | None:
        """The type that most of the weights are in; None where that has 16 bits or more."""
        counted: Counter[int] = Counter()
        for part in self.parts:
            for tensor in part.tensors:
                counted[tensor.kind] += tensor.elements
        name, block, size = _TYPES[max(counted, key=lambda kind: (counted[kind], kind))]
        bits = size * 8 / block
        return None if bits >= BITS_16 else QuantizedBefore(format=name, block=block, bits=bits)


def name_of(path: Path) -> str:
    """`SmolLM2-135M-Instruct.Q4_1-00001-of-00002.gguf` -> `SmolLM2-135M-Instruct`."""
    stem = gguf_parts.without_number(path.stem)
    return _QUANTIZATION.sub("", stem) or stem


def find_original(folder: Path) -> Path | None:
    """Return the GGUF file that a folder's model was made from, the first part of one that was split; None where none
    was kept."""
    return next(iter(sorted((folder / ORIGINAL).glob(f"*{SUFFIX}"))), None)


def size_of_parts(file: Path) -> int:
    """Return the bytes of a kept GGUF file with all its parts."""
    return sum(part.stat().st_size for part in file.parent.glob(f"*{SUFFIX}"))


def type_in_name(path: Path) -> str:
    """Return the type that most weights are in, for a name: `Q4_1`."""
    before = read_model(path).quantized_before
    return before.format if before else "16-bit"


def read_model(path: Path) -> Model:
    """The model that `path` holds, or is one part of.

    Raises UnknownModel where there is no such file, InvalidModel in one sentence: no GGUF, cut short, out of bounds, a
    part missing or of another model, or something in it that an import does not carry.
    """
    if not path.exists():
        raise UnknownModel(f"There is no file {path}: check the path.")
    # 1. Read the heads of all parts and check that they belong together.
    parts = tuple(read_head(part) for part in gguf_parts.paths(path))
    first = parts[0]
    _check_kind(first)
    _check_parts(parts)
    # 2. Check that tensors lie within the files and have one name each.
    sizes = [_check_tensors(part) for part in parts]
    tensors = {tensor.name: tensor.shape[::-1] for part in parts for tensor in part.tensors}
    counted = sum(len(part.tensors) for part in parts)
    if len(tensors) < counted:
        raise InvalidModel(f"{first.path.name} has two tensors of one name: it is damaged, download it again.")
    # 3. Check that tokenizer and weights can be converted.
    tokenizer_plan(first.path.name, first.values, first.counts)
    conversion = plan(first.path.name, first.architecture, first.values, first.counts, tensors, _rope_factors(parts))
    return Model(parts, conversion, sum(sizes))


def read_head(path: Path) -> Head:
    """Keys and the table of tensors of one file. Raises InvalidModel in one sentence: no GGUF, cut short, or out of
    bounds."""
    try:
        with path.open("rb") as source:
            start = source.read(MOST_BYTES)
    except OSError as error:
        raise InvalidModel(
            f"{path.name} cannot be read ({error.strerror}): check the path and its permissions."
        ) from None
    try:
        return _Reader(path, start).head()
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
        raise InvalidModel(f"{path.name} is cut short or damaged: its head ends in the middle of a value.") from None


def _check_kind(head: Head) -> None:
    """Only whole language models are imported. Raises InvalidModel, which says what else it is."""
    # Refuse adapters, projectors and other parts of models.
    name, kind = head.path.name, str(head.values.get("general.type", "model"))
    if head.architecture == "clip":
        kind = "mmproj"
    if kind != "model":
        what = NO_MODEL.get(kind, f"of the type `{_shown(kind)}`")
        raise InvalidModel(f"{name} is {what} and no whole language model: give the GGUF file of the model.")
    if head.architecture not in ARCHITECTURES:
        shown = _shown(head.architecture) or "no architecture"
        raise InvalidModel(
            f"{name} is of the architecture `{shown}`: GGUF files of {', '.join(ARCHITECTURES)} can be imported."
        )
    # Refuse blocks in another form than this reader knows.
    version = head.values.get("general.quantization_version", QUANTIZATION_VERSION)
    if version != QUANTIZATION_VERSION:
        raise not_carried(name, "general.quantization_version", head.values)


def _check_parts(parts: tuple[Head, ...]) -> None:
    """Raise InvalidModel where files lie beside each other under one name and are not the parts of one model."""
    first, count = parts[0], len(parts)
    stated = first.values.get("split.count", 1)
    if count == 1 and stated not in {0, 1}:
        raise InvalidModel(
            f"{first.path.name} is one of {_shown(stated)} parts: give all of them the names that they were published "
            f"with, NAME-00001-of-{_shown(stated):0>5}.gguf and so on."
        )
    # Every part states its number, the count of parts and the sum of tensors.
    total = sum(len(part.tensors) for part in parts)
    for number, part in enumerate(parts):
        own = (
            part.values.get("split.no", 0),
            part.values.get("split.count", 1),
            part.values.get("split.tensors.count"),
        )
        expected = (number, count, total)
        if count > 1 and own != expected:
            raise InvalidModel(
                f"{part.path.name} is not part {number + 1} of {count} of this model ({total} tensors in all): it "
                "states part "
                f"{_shown(_counted(own[0]))} of {_shown(own[1])} and {_shown(own[2])} tensors. Download all parts of "
                "one model."
            )
        # What a later part repeats of the head must agree with the first.
        other = [key for key in part.values if key not in STRUCTURAL and first.values.get(key) != part.values[key]]
        other += [key for key in part.counts if number and first.counts.get(key) != part.counts[key]]
        if other:
            raise InvalidModel(
                f"{part.path.name} says another `{_shown(other[0])}` than the first part: download all parts again."
            )


def _counted(number: Any) -> Any:
    """Parts count from 0 in the file and from 1 in names."""
    return number + 1 if type(number) is int else number


def _shown(text: Any) -> str:
    return re.sub(r"[^\w.-]", "?", str(text))[:40]


def _check_tensors(head: Head) -> int:
    """The size of the file. Raises InvalidModel for tensors beyond its end, or in a type that is not read."""
    name, size = head.path.name, head.path.stat().st_size
    unknown = next((tensor for tensor in head.tensors if tensor.kind not in _TYPES), None)
    if unknown is not None:
        raise InvalidModel(
            f"{name} has the tensor {_shown(unknown.name)} in a type ({unknown.kind}) that is not read: import the "
            "original."
        )
    if not head.tensors and "split.count" not in head.values:
        raise InvalidModel(f"{name} has a vocabulary and no weights: give the GGUF file of the model.")
    if any(head.data_offset + tensor.offset + tensor.bytes > size for tensor in head.tensors):
        raise InvalidModel(f"{name} is incomplete: its tensors end after the end of the file; download it again.")
    return size


def _rope_factors(parts: tuple[Head, ...]) -> tuple[float, ...]:
    """The values of rope_freqs.weight; none where it is not there. Raises InvalidModel where they are no 32-bit
    floats."""
    for part in parts:
        for tensor in part.tensors:
            if tensor.name != FREQUENCIES:
                continue
            if tensor.kind != 0 or not 0 < tensor.elements <= MOST_PARTS:
                raise InvalidModel(
                    f"{part.path.name} has {FREQUENCIES} in a form that is not read: import the original model."
                )
            with part.path.open("rb") as file:
                file.seek(part.data_offset + tensor.offset)
                return struct.unpack(f"<{tensor.elements}f", file.read(tensor.bytes))
    return ()


class _Reader:
    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content, self.position = path, content, 0
        self.passed = 0
        """Values of arrays so far."""

    def head(self) -> Head:
        # 1. The mark and the version.
        if self.content[:4] != b"GGUF":
            raise InvalidModel(f"{self.path.name} is not a GGUF file: it does not begin with its mark.")
        self.position = 4
        version = self._number("I")
        if version not in {2, 3}:
            raise InvalidModel(
                f"{self.path.name} is GGUF of version {version}: 2 and 3 are read, convert it with llama.cpp."
            )
        # 2. Numbers of tensors and keys, within limits before anything is allocated.
        tensors, keys = self._bounded(MOST_TENSORS), self._bounded(MOST_KEYS)
        values, counts = {}, {}
        # 3. Keys: scalars and texts are read, arrays counted and passed over.
        for _ in range(keys):
            key, kind = self._text(), self._number("I")
            if key in values or key in counts:
                raise InvalidModel(f"{self.path.name} says `{_shown(key)}` twice: it is damaged, download it again.")
            if kind == _ARRAY:
                counts[key] = self._pass_array()
            else:
                values[key] = self._value(kind)
        # 4. The table of tensors.
        table = tuple(self._tensor() for _ in range(tensors))
        return Head(
            self.path, values, counts, table, self.position, hashlib.sha256(self.content[: self.position]).hexdigest()
        )

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.content, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def _bounded(self, most: int) -> int:
        count = int(self._number("Q"))
        if count > most:
            raise InvalidModel(f"{self.path.name} states {count:,} entries where {most:,} are the most: it is damaged.")
        return count

    def _text(self) -> str:
        size = self._bounded(MOST_BYTES)
        encoded = self.content[self.position : self.position + size]
        if len(encoded) < size:
            raise IndexError
        self.position += size
        return encoded.decode()

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
                self.position += 8 + struct.unpack_from("<Q", self.content, self.position)[0]
        elif kind in _SCALARS:
            self.position += count * struct.calcsize(f"<{_SCALARS[kind]}")
        else:
            raise InvalidModel(f"{self.path.name} has an array of an unknown type ({kind}): it is damaged.")
        return count

    def _tensor(self) -> Tensor:
        name, dimensions = self._text(), self._number("I")
        if dimensions > 4:
            raise InvalidModel(f"{self.path.name} has a tensor of {dimensions} dimensions: it is damaged.")
        shape = tuple(int(self._number("Q")) for _ in range(dimensions))
        return Tensor(name, shape, self._number("I"), int(self._number("Q")))


def card(model: Model, name: str) -> ModelCard:
    """Make the card from the head before the model is converted; `weights_bytes` are of the 16-bit weights that it will
    have."""
    conversion = model.conversion
    config = conversion.config
    experts = config.get("num_local_experts")
    routed = sum(math.prod(tensor.shape) for tensor in conversion.tensors if ".experts." in tensor.becomes[0])
    return ModelCard(
        id=name,
        origin="imported",
        architecture=conversion.architecture,
        model_type=conversion.model_type,
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocabulary=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        dtype="bfloat16",
        tied_embeddings=config["tie_word_embeddings"],
        parameters=model.parameters,
        gated_mlp=True,
        path=str(model.path),
        revision=model.sha256,
        weights_bytes=2 * model.parameters,
        tokenizer_hash=None,
        licence=model.licence,
        quantized_before=model.quantized_before,
        experts=experts,
        experts_per_token=config.get("num_experts_per_tok"),
        expert_parameters=routed or None,
    )
