"""The variant of an artifact: its model under the recipe's settings, with draft and compile cache."""

from __future__ import annotations

from pathlib import Path

from backend.artifacts import locations
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.jobs.artifact import Manifest
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.domain.recipe.speculation import SPECULATE
from backend.settings import Settings


def variant_of_artifact(settings: Settings, path: str, manifest: Manifest, source: str) -> Variant:
    """Make the variant of an artifact at `path`, a folder or an address; `source` is what a person types for it."""
    folder = locations.location_of(settings, path).outline(path, manifest)
    compiled = any(file.path.startswith("compile_cache/") for file in manifest.files)
    return Variant(
        name=manifest.recipe.name,
        source=source,
        kind="artifact",
        model_path=str(folder / "model"),
        original_path=manifest.parent.path,
        serving=manifest.recipe.serving.on_engine(manifest.recipe.serving.engine_name),
        speculation=_speculation(settings, manifest.recipe, folder),
        compile_cache=str(folder / "compile_cache") if compiled else None,
        neuron=manifest.compile_key if manifest.for_neuron else None,
        gguf=str(folder / manifest.gguf["file"]) if manifest.gguf else None,
        recipe_hash=manifest.recipe_hash,
        bytes_on_disk=manifest.bytes_after,
        stored_at=None if str(folder) == path else path,
    )


def _speculation(settings: Settings, recipe: Recipe, folder: Path) -> Speculation | None:
    step = recipe.step("speculate")
    if not isinstance(step, Speculate) or (SPECULATE[step.method].needs == "head" and step.draft is None):
        return None  # a head that the managed toolkit trains is part of its weights
    return Speculation.from_step(step, str(folder / "draft"), settings.classes(step.method))
