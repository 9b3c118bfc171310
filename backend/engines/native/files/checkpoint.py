"""Writes a quantized checkpoint: config, tokenizer and companions, each file whole or not at all.

Knows nothing of quantization beyond putting `quantization_config` where readers look for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import files
from backend.domain.errors import RequestError
from backend.layered.source import Source

if TYPE_CHECKING:
    import torch

COPIED = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "chat_template*")
COPIED_TOO = ("generation_config.json", "LICENSE*", "NOTICE*")


def storage_dtype(source: Source) -> torch.dtype:
    """What the result stores 16-bit values in: the original's dtype where it is a 16-bit one, else bfloat16."""
    import torch

    return torch.float16 if source.dtypes == {"F16"} else torch.bfloat16


def fresh(folder: Path) -> None:
    """Make the output folder. Raises RequestError when it already holds something."""
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise RequestError(f"{folder} is not empty: give a new folder for the quantized model.")


def write_json(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    files.write(path, text)


def write_companions(source: Path, folder: Path) -> None:
    """Copy tokenizer, generation and licence files; name a tokenizer class that transformers 4 knows as well."""
    for path in sorted({path for pattern in (*COPIED, *COPIED_TOO) for path in source.glob(pattern) if path.is_file()}):
        if path.name == "tokenizer_config.json":
            document = json.loads(path.read_bytes())
            if document.get("tokenizer_class") == "TokenizersBackend":
                document["tokenizer_class"] = "PreTrainedTokenizerFast"
            write_json(folder / path.name, document)
        else:
            files.copy(path, folder / path.name)


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
