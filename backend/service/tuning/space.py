"""The stacks that can be tried for a model on this machine: by the rules, and by the engines that are installed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from backend.catalog.cards import gguf
from backend.domain.errors import EngineMissing, ImpossibleStack, InvalidOptions
from backend.domain.figures import listed
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.serving.source_settings import SETTINGS
from backend.domain.recipe.serving_engines import ENGINES, Hardware
from backend.domain.similar_names import find_similar
from backend.domain.tuning.rivals import AUTO_TUNE, auto_tune_stacks
from backend.domain.tuning.stacks import ORIGINAL, WEIGHTS, SpaceChoice, Stack, list_stacks
from backend.hardware import engine_status, probe
from backend.service.models import variants
from backend.service.plans import cases, optimize
from backend.service.workspace import Workspace

LISTED = 3
"""Reasons that a refusal names."""


class Space(NamedTuple):
    """The stacks of a search. `left_out`: why weights cannot be made or served here, or not by an engine, by their
    title."""

    baseline: Stack
    stacks: list[Stack]
    left_out: dict[str, str]


def check_choice(choice: SpaceChoice) -> None:
    """Raises InvalidOptions for an engine, weights or a setting that there is not."""
    for names, known, what in (
        (choice.engines, tuple(ENGINES), "engine"),
        (choice.weights, tuple(WEIGHTS), "form of weights"),
        (tuple(choice.settings), SETTINGS, "serving setting"),
    ):
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            nearest = find_similar(unknown, known) or known
            raise InvalidOptions(f"There is no {what} `{str(unknown)[:40]}`: use {' or '.join(nearest)}.")


def find_stacks(workspace: Workspace, model: ModelCard, choice: SpaceChoice) -> Space:
    """Return the original as the baseline, and the other stacks, the likeliest first.

    Raises InvalidOptions as `check_choice` does, ImpossibleStack where nothing can be tried, with the reasons.
    """
    check_choice(choice)
    hardware: Hardware = "cuda" if probe.has_nvidia() else "cpu"
    installed = _installed_engines(workspace)
    keeps_gguf = gguf.find_original(Path(model.path)) is not None
    # 1. Weights that the rules allow here, and that something here serves.
    allowed, left_out = {ORIGINAL}, dict[str, str]()
    for key, form in WEIGHTS.items():
        if not form.steps or (choice.weights and key not in choice.weights):
            continue
        why = _why_not(workspace, model, key)
        if why is None:
            allowed.add(key)
        else:
            left_out[form.title] = why
    # 2. The baseline: the original on vLLM, else on another engine.
    everything = SpaceChoice()
    originals = list_stacks(everything, hardware=hardware, engines=installed, weights={ORIGINAL}, keeps_gguf=keeps_gguf)
    plain = [stack for stack in originals if not stack.settings]
    if not plain:
        raise ImpossibleStack(f"No engine that is installed here serves {model.id}: install one on the page Hardware.")
    baseline = next((stack for stack in plain if stack.engine == "vllm"), plain[0])
    # 3. All others.
    stacks = list_stacks(choice, hardware=hardware, engines=installed, weights=allowed, keeps_gguf=keeps_gguf)
    others, refused = [], dict[str, str | None]()
    for stack in stacks:
        if stack.plain_name not in refused:
            refused[stack.plain_name] = _why_engine_refuses(workspace, model, stack)
        if refused[stack.plain_name] is None and stack.key != baseline.key:
            others.append(stack)
    left_out |= {name: why for name, why in refused.items() if why is not None}
    if not others:
        reasons = [f"{title}: {why}" for title, why in left_out.items()]
        more = f" ({listed(reasons[:LISTED])})" if reasons else ""
        raise ImpossibleStack(
            f"There is nothing to try for {model.id} besides the original{more}: widen engines or weights."
        )
    return Space(baseline, others, left_out)


def find_rivals(workspace: Workspace, against: Collection[str]) -> tuple[Stack, ...]:
    """Return the stacks that auto_tune would measure, where it is named. Raises InvalidOptions if vLLM is missing."""
    if AUTO_TUNE not in against:
        return ()
    if "vllm" not in _installed_engines(workspace):
        raise InvalidOptions(
            f"`{AUTO_TUNE}` tunes vLLM, which is not installed here: install it on the page Hardware, or leave it out."
        )
    return auto_tune_stacks()


def _installed_engines(workspace: Workspace) -> Collection[str]:
    folder = workspace.settings.engines
    return {name for name, engine in ENGINES.items() if engine_status.read_marker(folder, engine.environment)}


def _why_engine_refuses(workspace: Workspace, model: ModelCard, stack: Stack) -> str | None:
    """Return why the stack's engine does not serve these weights of the model; None where it does."""
    if stack.weights == ORIGINAL:
        plain = stack.model_copy(update={"settings": {}})
        return variants.why_engine_refuses(variants.resolve(workspace, plain.source(model.path, {})))
    recipe = WEIGHTS[stack.weights].recipe
    recipe = recipe.model_copy(update={"serving": recipe.serving.on_engine(stack.engine)})
    verdict = cases.resolve(workspace, model, recipe).verdict
    return verdict.reasons[0].message if verdict.plan is None and verdict.reasons else None


def _why_not(workspace: Workspace, model: ModelCard, weights: str) -> str | None:
    """Return why these weights cannot be made or served here; None where they can."""
    recipe = WEIGHTS[weights].recipe
    verdict = cases.resolve(workspace, model, recipe).verdict
    if verdict.plan is None:
        return verdict.reasons[0].message if verdict.reasons else "the rules refuse it"
    try:
        optimize.require_engines(workspace, recipe, verdict.plan)
    except EngineMissing as missing:
        return str(missing)
    return variants.why_recipe_unserved(workspace, model, recipe)
