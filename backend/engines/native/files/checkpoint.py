"""Writes a quantized checkpoint: config, tokenizer, companions and weights, each file whole or not at all.

Weights come as finished parts, one safetensors file each, which are joined into shards by copying bytes: no tensor is
loaded. The form of such a file: the length of the header (8 bytes, little-endian), the header (JSON), the data. Knows
nothing of quantization beyond putting `quantization_config` where readers look for it.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from backend import files
from backend.domain.errors import ImpossibleStack, RequestError
from backend.domain.model.announced_quantization import ANNOUNCING
from backend.layered import dequantize, tokenizers
from backend.layered.weight_source import INDEX, WeightSource

if TYPE_CHECKING:
    import torch

COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
)
COPIED_IMAGES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
NO_CHANGES: Mapping[str, Any] = {}
COPIED_TOO = ("generation_config.json", "LICENSE*", "NOTICE*")


def storage_dtype(source: WeightSource) -> torch.dtype:
    """Return what the result stores 16-bit values in: the original's dtype where it is a 16-bit one, else bfloat16."""
    import torch

    return torch.float16 if source.dtypes == {"F16"} else torch.bfloat16


def check_plain(model_dir: Path) -> None:
    """Raise ImpossibleStack for a model that is quantized already: libraries and training read plain weights only."""
    layout = dequantize.recognise_layout(WeightSource(model_dir))
    if layout is not None:
        raise ImpossibleStack(
            f"The model is already quantized: start from its 16-bit original. It is stored as {layout.layout}, which "
            "only the native engine reads, where it is read at all."
        )


def make_empty_folder(folder: Path) -> None:
    """Make the output folder. Raises RequestError when it already holds something."""
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise RequestError(f"{folder} is not empty: give a new folder for the quantized model.")


def write_json(path: Path, document: dict[str, Any]) -> None:
    files.write(path, json.dumps(document, indent=2, sort_keys=True) + "\n")


def write_companions(source: Path, folder: Path) -> None:
    """Copy tokenizer, generation and licence files.

    The tokenizer's class is one that transformers 4 knows, and that reads as the one that was measured.
    """
    # 1. Copy the files, with a class of the tokenizer that transformers 4 knows.
    companions: set[Path] = set()
    for pattern in (*COPIED, *COPIED_IMAGES, *COPIED_TOO):
        companions |= {path for path in source.glob(pattern) if path.is_file()}
    for path in sorted(companions):
        if path.name == "tokenizer_config.json":
            document = json.loads(path.read_bytes())
            if document.get("tokenizer_class") == "TokenizersBackend":
                document["tokenizer_class"] = "PreTrainedTokenizerFast"
            write_json(folder / path.name, document)
        else:
            files.copy(path, folder / path.name)

    # 2. Complete them by what decides how text is read.
    tokenizers.complete_copy(source, folder)


def write_config(
    source: Path, folder: Path, dtype: str, quantization: dict[str, Any] | None, changes: Mapping[str, Any] = NO_CHANGES
) -> None:
    """Write config.json, with `quantization_config` if there is one; call it last: the folder is no model before.

    `changes` are fields of the model, or of its text part, that differ from the source's. transformers 4 and 5 both
    read it (`rope_theta` beside `rope_parameters`...).
    """
    # 1. Say what the result is, and no longer what the source was.
    config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    config |= {"dtype": dtype, "torch_dtype": dtype}
    text = config.get("text_config")
    (text if isinstance(text, dict) else config).update(changes)
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for field in ANNOUNCING:
            part.pop(field, None)
    if quantization is not None:
        config["quantization_config"] = quantization

    # 2. Say rotary embeddings in the words of both.
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    write_json(folder / "config.json", config)


SHARD_BYTES = 5_000_000_000
ALIGNMENT = 8
OS_ERROR = re.compile(r"os error (\d+)")


def write_part(path: Path, tensors: dict[str, torch.Tensor], *, flush: bool = True) -> None:
    """Write one part; with `flush` a run after a crash may go on from it.

    Raises DiskFull or WorkError, and then leaves nothing behind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    with files.staged_file(path, flush=flush) as staged:
        try:
            save_file(contiguous, staged, metadata={"format": "pt"})
        except SafetensorError as error:  # the system's own number stands in its words alone
            number = OS_ERROR.search(str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None
        staged.chmod(0o644)  # safetensors makes files that only their owner can read


def join(parts: Sequence[Path], folder: Path, shard_bytes: int = SHARD_BYTES) -> int:
    """Write `parts` in order as one file, or as shards of at most `shard_bytes` with their index; return the bytes
    written.

    A part that is larger by itself is a shard of its own. The parts stay. Raises DiskFull or WorkError.
    """
    # 1. Name the shards.
    shards = _shards(parts, shard_bytes)
    count = len(shards)
    names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    names = names if count > 1 else ["model.safetensors"]

    # 2. Copy the parts of each behind one header.
    weight_map: dict[str, str] = {}
    total = 0
    for name, shard in zip(names, shards, strict=True):
        header, size = _joined_header(shard)
        with files.staged_file(folder / name) as staged:
            _copy(shard, header, staged)
        weight_map |= dict.fromkeys((key for key in header if key != "__metadata__"), name)
        total += size

    # 3. Write the index of several shards.
    if count > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return sum((folder / name).stat().st_size for name in names)


def _shards(parts: Sequence[Path], limit: int) -> list[list[Path]]:
    shards: list[list[Path]] = [[]]
    size = 0
    for part in parts:
        added = part.stat().st_size
        if shards[-1] and size + added > limit:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += added
    return shards


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """Read the header without its metadata; the file is then at the first byte of data."""
    header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return header


def _joined_header(parts: Sequence[Path]) -> tuple[dict[str, Any], int]:
    """Return the header of all parts one after another, and the bytes of their data."""
    joined: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for part in parts:
        with part.open("rb") as file:
            header = _read_header(file)
        end = offset
        for name, entry in header.items():
            begin, end_of_entry = (offset + number for number in entry["data_offsets"])
            joined[name] = {**entry, "data_offsets": [begin, end_of_entry]}
            end = max(end, end_of_entry)
        offset = end
    return joined, offset


def _copy(parts: Sequence[Path], header: dict[str, Any], path: Path) -> None:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % ALIGNMENT)
    with path.open("wb") as sink:
        sink.write(len(encoded).to_bytes(8, "little") + encoded)
        for part in parts:
            with part.open("rb") as source:
                _read_header(source)
                shutil.copyfileobj(source, sink, 1 << 22)
