"""Commands that serve a model or an artifact on engines that are not started here."""

from __future__ import annotations

from backend.domain.errors import RequestError
from backend.domain.launch_commands import commands
from backend.domain.launch_commands.commands import LaunchCommand
from backend.domain.launch_commands.engines import ENGINES, LaunchName
from backend.domain.recipe.recipe import ORIGINAL
from backend.domain.recipe.serving_engines import artifact_id
from backend.service.jobs import artifacts
from backend.service.models import variants
from backend.service.workspace import Workspace


def prepare(workspace: Workspace, source: str, engine: str) -> LaunchCommand:
    """Return the command that serves the source on that engine.

    Raises RequestError for an engine that is none and for an address, ImpossibleStack where the engine does not read
    it, UnknownModel, NotFound.
    """
    # 1. The engine.
    name = next((name for name in ENGINES if name == engine), None)
    if name is None:
        raise RequestError(f"There is no launch command for `{engine[:40]}`: use {_names()}.")
    # 2. The variant, and the recipe that made it.
    variant = variants.resolve(workspace, source)
    if variant.model_path is None:
        raise RequestError(f"{variant.name} runs already: give a model or an artifact.")
    is_artifact = variant.kind == "artifact"
    recipe = artifacts.show(workspace, artifact_id(source)).manifest.recipe if is_artifact else ORIGINAL
    return commands.make_command(name, variant, recipe)


def list_engines() -> list[tuple[LaunchName, str]]:
    """Return (name, title) of each engine that has a launch command."""
    return [(name, row.title) for name, row in ENGINES.items()]


def _names() -> str:
    *most, last = ENGINES
    return f"{', '.join(most)} or {last}"
