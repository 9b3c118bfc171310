"""Reads a checkpoint's tensors and writes a quantized one: weights, config, tokenizer, each file whole or not at all.

Knows nothing of quantization beyond putting `quantization_config` where readers look for it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import DiskFull, ModelDamaged, RequestError, WorkError

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
COPIED = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "chat_template*")
COPIED_TOO = ("generation_config.json", "LICENSE*", "NOTICE*")


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors files, through the index where there is one."""
    if (folder / INDEX).is_file():
        shards = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        return [folder / shard for shard in sorted(shards)]
    return [folder / "model.safetensors"]


class Source:
    """A checkpoint's tensors by name, read one at a time; only headers are read at first, no file stays open.

    Raises ModelDamaged where a shard is missing, cannot be read, or lacks a tensor that the index promises.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}
        self.dtypes: set[str] = set()
        """As safetensors writes them (F16, BF16...)."""
        for path in weight_files(folder):
            with _opened(path) as file:
                names = list(file.keys())
                self.files |= dict.fromkeys(names, path)
                self.dtypes |= {file.get_slice(name).get_dtype() for name in names}
        for name in _promised(folder) - self.files.keys():
            raise ModelDamaged(f"{name} stands in {INDEX} but in no shard: download or export the model again.")

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of these names, file by file."""
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.files[name], []).append(name)
        for path, held in by_file.items():
            with _opened(path) as file:
                for name in held:
                    yield name, file.get_tensor(name)

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in set(self.files.values()))


def storage_dtype(source: Source) -> torch.dtype:
    """What the result stores 16-bit values in: the original's dtype where it is a 16-bit one, else bfloat16."""
    import torch

    return torch.float16 if source.dtypes == {"F16"} else torch.bfloat16


def _promised(folder: Path) -> set[str]:
    index = folder / INDEX
    return set(json.loads(index.read_bytes())["weight_map"]) if index.is_file() else set()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

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


def write_config(source: Path, folder: Path, dtype: str, quantization: dict[str, Any] | None) -> None:
    """config.json with `quantization_config` where there is one; written last: the folder is no model before.

    Readable by transformers 4 and 5 (`rope_theta` beside `rope_parameters`...).
    """
    config: dict[str, Any] = json.loads((source / "config.json").read_bytes())
    config |= {"dtype": dtype, "torch_dtype": dtype}
    if quantization is not None:
        config["quantization_config"] = quantization
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    write_json(folder / "config.json", config)
