"""The rules on recipes that make a GGUF file, and the notes on what llama.cpp's quantizer makes of a model's sizes."""

from __future__ import annotations

from collections.abc import Iterator

from backend.domain.figures import listed
from backend.domain.model.facts import ModelFacts
from backend.domain.model.gguf import file_types
from backend.domain.model.gguf.export import find_unwritable
from backend.domain.recipe import quantize_step
from backend.domain.recipe.methods import GGUF
from backend.domain.recipe.recipe import ENGINE_OPTIONS, Quantize, Recipe, Serving
from backend.domain.recipe.serving_engines import OPENVINO_READER, choose_engine, find_unread_types
from backend.domain.rules.target_facts import Reason, TargetFacts


def find_step(recipe: Recipe) -> Quantize | None:
    """Return the step that makes a GGUF file; None where there is none."""
    step = recipe.step("quantize")
    return step if isinstance(step, Quantize) and step.method == GGUF else None


def with_engine_of_file(before: Recipe, after: Recipe) -> Recipe:
    """Return `after` with the engine that its steps need: llama.cpp where a step that makes a GGUF file was added, and
    the usual one, without the settings of llama.cpp alone, where it was taken away."""
    before_file, after_file = (find_step(recipe) is not None for recipe in (before, after))
    if before_file == after_file:
        return after
    if after_file:
        if after.serving.engine != choose_engine("safetensors"):
            return after
        return after.model_copy(update={"serving": after.serving.on_engine(choose_engine(GGUF))})
    remaining = after.serving.model_dump(exclude={"engine", *ENGINE_OPTIONS, "kv_cache_dtype"})
    return after.model_copy(update={"serving": Serving.model_validate(remaining)})


def check_gguf(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse a family that cannot be written, and steps and limits that go on from safetensors."""
    step = find_step(recipe)
    if step is None:
        return
    # 1. The family, and the place where it is made.
    refusal = find_unwritable(model.model_type)
    if refusal is not None:
        message = f"`gguf` is not possible for {model.id}, since {refusal}: use `rtn` or `w8a8`, served by vLLM."
        yield Reason(rule="gguf-family", message=message, source="docs/gguf.md, Families")
    if facts.place in {"managed", "neuron"}:
        message = f"llama.cpp serves GGUF files on processors, and {facts.where} is another place: choose this machine."
        yield Reason(rule="gguf-place", message=message, source="docs/gguf.md")
    # 2. What does not go with it.
    if recipe.step("prune"):
        message = "`gguf` starts from the model's own weights in this version: leave `prune` out."
        yield Reason(rule="gguf-steps", message=message, source="docs/gguf.md, Limits")
    if recipe.step("compile"):
        message = "`compile` starts vLLM, and llama.cpp serves a GGUF file without it: leave `compile` out."
        yield Reason(rule="gguf-steps", message=message, source="docs/gguf.md, Limits")
    if recipe.serving.engine == "openvino" and refusal is None:
        yield from _check_openvino(model, step)
    if recipe.limits.fall_back:
        message = "`limits.fall_back` raises groups of linears, which `gguf` has none of: choose a larger `type`."
        yield Reason(rule="gguf-limits", message=message, source="docs/gguf.md, Limits")


def _check_openvino(model: ModelFacts, step: Quantize) -> Iterator[Reason]:
    """Refuse a type whose tensors OpenVINO does not read, before the file is made."""
    chosen = quantize_step.option_value(step, "type")
    unread = {name: find_unread_types(file_types.tensor_types(model, name)) for name in file_types.TYPES}
    if unread[chosen]:
        others = " or ".join(f"`type: {name}`" for name, types in unread.items() if not types)
        title = file_types.TYPES[chosen].title
        message = (
            f"A {title} file of {model.id} has tensors of type {listed(unread[chosen])}, which OpenVINO GenAI does not "
            f"read: use {others}, or `engine: llama.cpp`."
        )
        yield Reason(rule="gguf-openvino", message=message, source=OPENVINO_READER)


def notes(model: ModelFacts, recipe: Recipe) -> list[str]:
    """Return what is stored otherwise than the type says, and which programs read the file."""
    step = find_step(recipe)
    if step is None:
        return []
    # 1. Rows that are no multiple of a block.
    known, listed = quantize_step.gguf_type(step), []
    widths = file_types.odd_widths(model, quantize_step.option_value(step, "type"))
    if widths:
        rows = " and ".join(map(str, widths))
        other = file_types.PART_TYPES[known.main]
        listed.append(
            f"Rows of {rows} weights are no multiple of {known.block}, so llama.cpp stores those matrices in {other} "
            f"or larger, in place of {known.title}."
        )
    # 2. An importance matrix that changes nothing.
    if step.imatrix and not known.uses_imatrix:
        listed.append(f"{known.title} is stored the same with and without an importance matrix: none is measured.")
    return listed
