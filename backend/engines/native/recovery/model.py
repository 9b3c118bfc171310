"""A whole model in fp32 for a recovery, which modules of it are the pruned matrices, and the checkpoint with them replaced.

Knows names and files, no training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import ImpossibleStack, ModelDamaged
from backend.engines.native.files.shards import write_part
from backend.engines.native.recovery.adapters import Adapters
from backend.layered.outline import Outline
from backend.layered.source import Source, weight_files


def load(folder: Path, device: str, linears: Collection[str] = ()) -> tuple[Any, dict[str, str]]:
    """The model, in evaluation mode, and the path of its module for each of `linears`.

    Raises ImpossibleStack for experts, which transformers holds as one tensor, and ModelDamaged where it cannot be loaded.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    paths = _paths(folder, linears) if linears else {}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        first = str(error).partition("\n")[0]
        raise ModelDamaged(f"The model in {folder.name} cannot be loaded for recovery ({first}): make it again.") from None
    return model.eval().requires_grad_(False).to(device), paths


def _paths(folder: Path, linears: Collection[str]) -> dict[str, str]:
    outline = Outline(Source(folder))
    if outline.family.experts is not None:
        raise ImpossibleStack("Recovery has no adapters for models made of experts: leave `recover` out.")
    inside = [name for group in outline.family.groups for name in group.linears]
    known = {
        outline.stored_name(number, name): f"{outline.family.layers}.{number}.{name}"
        for number in range(outline.count)
        for name in inside
    }
    return {name: known[name] for name in linears}


def write(source: Path, folder: Path, adapters: Adapters, paths: Mapping[str, str]) -> None:
    """The checkpoint in `source` with the matrices of `paths` merged, file by file under the same names; config.json last.

    Raises DiskFull or WorkError.
    """
    from safetensors.torch import load_file

    for file in weight_files(source):
        tensors = load_file(file)
        for name in tensors:
            path = paths.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
            if path is not None:
                tensors[name] = adapters.merged(path, tensors[name].dtype)
        write_part(folder / file.name, tensors)
    others = [each for each in sorted(source.iterdir()) if each.is_file() and each.suffix != ".safetensors"]
    for each in sorted(others, key=lambda each: each.name == "config.json"):
        files.copy(each, folder / each.name)
