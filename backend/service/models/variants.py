"""From what a person writes to a Variant: a model id, a folder, an artifact id, the URL of an endpoint or one at
SageMaker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from backend import address, endpoint
from backend.artifacts import variants as artifact_variants
from backend.catalog.bundled import instances
from backend.domain.errors import BelowFloor, ImpossibleStack, NotFound, RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.figures import counted
from backend.domain.jobs.artifact import Manifest
from backend.domain.machine import instruction_sets
from backend.domain.model.facts import ModelCard
from backend.domain.neuron.software_stacks import STACKS
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Recipe, Serving, Speculate, Step
from backend.domain.recipe.speculation import MOST_TOKENS
from backend.domain.roles import Action
from backend.domain.rules import kernel_rules
from backend.hardware import engine_status, neuron
from backend.service.jobs import artifacts
from backend.service.machines import targets
from backend.service.models import endpoint_variants, models
from backend.service.workspace import Workspace

TOKENS = "@tokens="


def resolve(workspace: Workspace, source: str, *, serving: Serving | None = None) -> Variant:
    """The name of an address is looked up only for whoever may evaluate it.

    Raises UnknownModel, InvalidModel, NotFound, RequestError for an address that cannot be one.
    """
    # 1. An endpoint.
    if source.startswith(("http://", "https://")):
        return _endpoint(source, may_ask=workspace.refusal(Action.SUBMIT) is None)
    if endpoint_variants.is_endpoint(source):
        return endpoint_variants.make_variant(workspace, source)
    # 2. An artifact.
    if models.is_artifact(source):
        return _artifact(workspace, source)
    # 3. A model.
    card = models.resolve(workspace, source)
    return Variant(
        name=card.id,
        source=source,
        kind="model",
        model_path=card.path,
        original_path=card.path,
        serving=serving or Serving(),
        bytes_on_disk=card.weights_bytes,
    )


def _endpoint(source: str, *, may_ask: bool) -> Variant:
    """`URL` or `URL#MODEL`; without a model the first one that the endpoint lists is asked for."""
    # Parse the address and refuse secrets in it.
    try:
        parts = urlsplit(source)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None:
        raise RequestError(f"`{source[:120]}` is not an address: write http://HOST[:PORT] or https://HOST[:PORT].")
    if parts.username or parts.password:
        raise RequestError(
            f"Leave user and password out of the address of {host}: give the name of an environment variable that "
            "holds the token ({}).",
            "bearer_env",
        )
    if parts.query:
        raise RequestError(
            f"Leave out the part from ? on of the address of {host}: an endpoint ends with its path, such as /v1."
        )
    target = endpoint.parse_address(source.partition("#")[0])
    if may_ask:
        address.check_public(target)
    url = parts._replace(fragment="").geturl().rstrip("/")
    return Variant(name=source, source=source, kind="url", url=url, served_name=unquote(parts.fragment) or None)


def check_served(workspace: Workspace, variants: list[Variant]) -> None:
    """Raise ImpossibleStack for an artifact that this machine cannot serve, such as one made for a GPU."""
    for variant in variants:
        if variant.kind == "artifact" and (why := why_unserved(workspace, variant.source)):
            raise ImpossibleStack(f"{variant.name} cannot be served here: {why}.")


def check_floor(workspace: Workspace, variants: list[Variant], *, anyway: bool) -> None:
    """Raise BelowFloor if a variant's quality is below the floor, unless `anyway`."""
    warnings = (
        []
        if anyway
        else floor_warnings(workspace, [variant.source for variant in variants if variant.kind == "artifact"])
    )
    if warnings:
        raise BelowFloor(f"{' '.join(warnings)} To use it all the same, give {{}}.", "anyway")


def floor_warnings(workspace: Workspace, sources: Iterable[str]) -> list[str]:
    """Return a sentence for each artifact whose quality is below the floor; missing artifacts are skipped."""
    warnings = []
    for source in dict.fromkeys(sources):
        try:
            manifest = artifacts.show(workspace, source).manifest if source.startswith("a-") else None
        except NotFound:
            continue
        if manifest is not None and (why := (manifest.quality or {}).get("below_floor")):
            warnings.append(f"{manifest.recipe.name} ({source}): {why}")
    return warnings


def why_unserved(workspace: Workspace, artifact_id: str) -> str | None:
    """Why this machine's server cannot read an artifact; None where it can."""
    manifest = artifacts.show(workspace, artifact_id).manifest
    if manifest.for_neuron:
        return why_unserved_on_neuron(workspace, manifest.compile_key or {})
    return why_recipe_unserved(workspace, manifest.parent, manifest.recipe)


def why_recipe_unserved(workspace: Workspace, model: ModelCard, recipe: Recipe) -> str | None:
    """Why this machine's server cannot read what the recipe makes of the model; None where it can."""
    facts = targets.rule_facts(targets.find(workspace, "local"), model, None)
    amx = instruction_sets.instruction_set(facts.features or ()) == "amx"
    step, experts = recipe.step("quantize"), bool(model.experts)
    why = quantize_step.unserved_reason(step, facts.hardware, model_type=model.model_type, experts=experts, amx=amx)
    return why[0] if why else kernel_rules.find_unserved(model, recipe, facts)


def why_unserved_on_neuron(workspace: Workspace, fields: Mapping[str, Any]) -> str | None:
    """Why what was compiled by the plan of these fields cannot be served here; None where it can."""
    # 1. The stack and the cores of this machine.
    accelerator, degree, stack = fields["accelerator"], fields["tensor_parallel"], STACKS[fields["stack"]]
    if stack.unserved:
        return stack.unserved
    if not (here := neuron.count_cores()):
        return (
            f"it was compiled for {accelerator}, and this machine has none: `whetstone evaluate` it on such an instance"
        )
    # 2. The same kind and number of cores.
    row = instances.load().instances.get(f"ml.{neuron.instance_type()}")
    if row is not None and row.accelerator != accelerator:
        return f"it was compiled for {accelerator} and this machine has {row.accelerator}: compile it for that"
    if degree > here:
        return f"it was compiled over {degree} NeuronCores and this machine has {here}: compile it for fewer"
    # 3. The plugin and what it serves.
    if fields.get("draft_method") == "draft":
        return (
            "no plugin for vLLM serves a plain draft on Neuron: compile it with `speculate: {method: eagle3}`, "
            "or without"
        )
    if engine_status.read_marker(workspace.settings.engines, stack.environment) and engine_status.lacks_package(
        workspace.settings, stack.environment, "vllm-neuron"
    ):
        return f"the environment `{stack.environment}` lacks vLLM's plugin for {stack.title} (docs/neuron.md, Serve)"
    return None


def distinct_names(variants: list[Variant]) -> list[Variant]:
    """The same name twice gets its source, then a number, so that charts and tables tell them apart."""
    counts: dict[str, int] = {}
    named = []
    for variant in variants:
        count = counts[variant.name] = counts.get(variant.name, 0) + 1
        named.append(variant if count == 1 else variant.model_copy(update={"name": f"{variant.name} ({count})"}))
    return named


def _artifact(workspace: Workspace, source: str) -> Variant:
    """`a-...`, or `a-...@tokens=N` with another draft length than its recipe's; 0 is without speculation."""
    artifact_id, _, written = source.partition(TOKENS)
    shown = artifacts.show(workspace, artifact_id)
    if shown.manifest.is_draft:
        method = getattr(shown.manifest.recipe.step("speculate"), "method", "draft")
        raise RequestError(
            f"{artifact_id} is a draft for {shown.manifest.parent.id} and nothing by itself: name it in a recipe "
            f"(`speculate: {{method: {method}, draft: {artifact_id}}}`) and evaluate what that makes."
        )
    manifest = _with_draft_tokens(shown.manifest, artifact_id, written) if TOKENS in source else shown.manifest
    return artifact_variants.variant_of_artifact(workspace.settings, shown.path, manifest, artifact_id)


def _with_draft_tokens(manifest: Manifest, artifact_id: str, written: str) -> Manifest:
    """Return the manifest with another number of draft tokens in its recipe. Raises RequestError."""
    # 1. Check the number.
    recipe = manifest.recipe
    if recipe.step("speculate") is None:
        raise RequestError(
            f"{artifact_id} does not speculate, so `{TOKENS}{written[:20]}` means nothing to it: leave that out."
        )
    if not written.isdecimal() or int(written) > MOST_TOKENS:
        raise RequestError(f"`{TOKENS}{written[:20]}` is wrong: give 0 (no speculation) to {MOST_TOKENS}.")
    # 2. Change or drop the speculate step.
    tokens, steps = int(written), list[Step]()
    for step in recipe.steps:
        if not isinstance(step, Speculate):
            steps.append(step)
        elif tokens:
            steps.append(step.model_copy(update={"tokens": tokens, "tokens_by_batch": None}))
    name = f"{recipe.name}, {counted(tokens, 'token') if tokens else 'no draft'}"
    chosen = recipe.model_copy(update={"steps": tuple(steps), "name": name})
    return manifest.model_copy(update={"recipe": chosen, "recipe_hash": chosen.hash})
