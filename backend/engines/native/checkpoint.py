"""Reads a checkpoint's tensors and writes a quantized one: weights, config, tokenizer, each file whole or not at all.

Knows nothing of quantization beyond putting `quantization_config` where readers look for it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import DiskFull, ModelDamaged, RequestError, WorkError

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5_000_000_000
COPIED = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "chat_template*")
COPIED_TOO = ("generation_config.json", "LICENSE*", "NOTICE*")


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors files, through the index where there is one."""
    if (folder / INDEX).is_file():
        shards = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        return [folder / shard for shard in sorted(shards)]
    return [folder / "model.safetensors"]


def read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every stored tensor by name. Raises ModelDamaged when a file cannot be read."""
    for file in _open_files(folder):
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def dtypes(folder: Path) -> set[str]:
    """The types of all stored tensors, as safetensors writes them (F16, BF16...). Raises ModelDamaged as `read_tensors`."""
    return {file.get_slice(name).get_dtype() for file in _open_files(folder) for name in file.keys()}  # noqa: SIM118


def _open_files(folder: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (OSError, SafetensorError) as error:
            raise ModelDamaged(f"{path.name} cannot be read ({error}): download or export the model again.") from None


def fresh(folder: Path) -> None:
    """Make the output folder. Raises RequestError when it already holds something."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise RequestError(f"{folder} is not empty: give a new folder for the quantized model.")


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full disk into DiskFull, other trouble with writing into WorkError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        code = getattr(error, "errno", None)
        if code in {errno.ENOSPC, errno.EDQUOT} or f"os error {errno.ENOSPC}" in str(error):
            raise DiskFull() from None
        raise WorkError(f"{where} cannot be written ({error}): check the folder and its permissions.") from None


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file aside, flush it to disk and put it in place in one step.

    Raises DiskFull or WorkError, and then leaves nothing behind.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        with disk_errors(path):
            write(aside)
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.chmod(0o644)
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    write_file(path, lambda aside: aside.write_text(text))


def write_weights(folder: Path, tensors: dict[str, torch.Tensor], shard_bytes: int = SHARD_BYTES) -> int:
    """Write one safetensors file, or shards of at most `shard_bytes` with their index; return the bytes written."""
    from safetensors.torch import save_file

    shards = _shards(tensors, shard_bytes)
    names = [_shard_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    for name, held in zip(names, shards, strict=True):
        part = {key: tensors[key] for key in held}
        write_file(folder / name, lambda aside, part=part: save_file(part, aside, metadata={"format": "pt"}))  # type: ignore[misc]
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        weight_map = {key: name for name, held in zip(names, shards, strict=True) for key in held}
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return sum((folder / name).stat().st_size for name in names)


def _shards(tensors: dict[str, torch.Tensor], limit: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _shard_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def write_companions(source: Path, folder: Path) -> None:
    """Copy tokenizer, generation and licence files; name a tokenizer class that transformers 4 knows as well."""
    for path in sorted({path for pattern in (*COPIED, *COPIED_TOO) for path in source.glob(pattern) if path.is_file()}):
        if path.name == "tokenizer_config.json":
            document = json.loads(path.read_bytes())
            if document.get("tokenizer_class") == "TokenizersBackend":
                document["tokenizer_class"] = "PreTrainedTokenizerFast"
            write_json(folder / path.name, document)
        else:
            write_file(folder / path.name, lambda aside, path=path: shutil.copyfile(path, aside))  # type: ignore[misc]


def write_config(source: Path, folder: Path, dtype: str, quantization: dict[str, Any]) -> None:
    """config.json with `quantization_config`, readable by transformers 4 and 5 (`rope_theta` beside `rope_parameters`...).

    Written last: the folder is no model before.
    """
    config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    config |= {"dtype": dtype, "torch_dtype": dtype, "quantization_config": quantization}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    write_json(folder / "config.json", config)
