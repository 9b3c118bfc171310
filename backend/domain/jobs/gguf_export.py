"""Decides whether the weights of an artifact can be written as a GGUF file as they are, and what the file is called."""

from __future__ import annotations

import re

from backend.domain.jobs.artifact import Manifest
from backend.domain.model.gguf.export import SUFFIX, find_unwritable
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize

BLOCK = 32
"""Weights of a block: groups must be multiples of it."""
NEAREST = "optimize {model} with `quantize: {{method: gguf, type: q8_0}}`"


def find_refusal(manifest: Manifest) -> str | None:
    """Return why no GGUF file is written of the artifact, and what works instead; None where one can be, also where it
    has one."""
    if manifest.gguf is not None:
        return None
    # 1. What it is.
    model, step = manifest.parent, manifest.recipe.step("quantize")
    nearest = NEAREST.format(model=model.id)
    if manifest.is_draft:
        return "It is a draft, which llama.cpp reads in other forms: export an artifact of the model itself"
    if manifest.for_neuron:
        return f"It was compiled for Neuron: {nearest}"
    if (unwritable := find_unwritable(model.model_type)) is not None:
        return f"{unwritable[:1].upper()}{unwritable[1:]}: serve it with vLLM"
    # 2. How its weights are stored.
    if not isinstance(step, Quantize):
        return None
    row = quantize_step.method_row(step)
    if step.method == "fp8" or row.fixed_group:
        return f"Weights in {row.made} are not written as GGUF: {nearest}"
    if step.method == "kv_cache" or step.kv_cache:
        return f"The scales of its key-value cache are vLLM's and have no place in GGUF: {nearest}"
    group = quantize_step.group_size(step)
    if group is not None and group % BLOCK:
        return f"Its groups of {group} do not fill GGUF's blocks of {BLOCK}: quantize in groups of {BLOCK}"
    return None


def file_name(manifest: Manifest) -> str:
    """Return the name of the file: of the model and the recipe, `SmolLM2-135M-Instruct.awq-g32.gguf`."""
    if manifest.gguf is not None:
        return str(manifest.gguf["file"]).rpartition("/")[2]
    model = manifest.parent.id.rpartition("/")[2]
    parts = [re.sub(r"[^A-Za-z0-9_-]+", "-", part).strip("-") for part in (model, manifest.recipe.name)]
    return f"{parts[0][:80]}.{parts[1][:60]}{SUFFIX}"
