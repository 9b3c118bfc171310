"""From what a person writes to a Variant: a model id, a folder, an artifact id, the URL of an endpoint or one at
SageMaker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from backend import address, endpoint
from backend.artifacts import variants as artifact_variants
from backend.catalog.bundled import instances
from backend.catalog.cards import gguf
from backend.catalog.remote import sources
from backend.domain.errors import BelowFloor, ImpossibleStack, NotFound, RequestError, UnknownModel
from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.evaluation.document import Variant
from backend.domain.figures import counted
from backend.domain.jobs.artifact import Manifest
from backend.domain.load.load import Load
from backend.domain.model.facts import ModelCard
from backend.domain.neuron.software_stacks import STACKS
from backend.domain.recipe import engine_choice, serving_engines
from backend.domain.recipe.engine_choice import OpenChoice
from backend.domain.recipe.recipe import Recipe, Serving, Speculate, Step
from backend.domain.recipe.serving import source_settings
from backend.domain.recipe.serving.source_settings import apply_settings, parse_source, write_source
from backend.domain.recipe.serving_engines import (
    AUTO,
    ENGINE,
    TOKENS,
    EngineChoice,
    EngineName,
    artifact_id,
    find_unsupported,
)
from backend.domain.recipe.speculation import MOST_TOKENS
from backend.domain.roles import Action
from backend.domain.rules import kernel_rules
from backend.hardware import engine_status, neuron, probe
from backend.present.source_names import short_name
from backend.service import paths
from backend.service.jobs import artifacts
from backend.service.machines import targets
from backend.service.models import endpoint_variants, measured_engines, models
from backend.service.workspace import Workspace


def resolve(workspace: Workspace, source: str, *, serving: Serving | None = None, streams: int = 1) -> Variant:
    """Return the variant of a source, which may end in `@engine=NAME` and `@SETTING=VALUE` if it is served here.

    Where the engine is `auto`, it is chosen for a load of so many streams. The name of an address is looked up only for
    whoever may evaluate it. Raises UnknownModel, InvalidModel, NotFound, ImpossibleStack where no engine serves it, and
    RequestError for an address that cannot be one and for an engine that is none.
    """
    # 1. An endpoint.
    if source.startswith(("http://", "https://")):
        return _endpoint(source, may_ask=workspace.refusal(Action.SUBMIT) is None)
    if endpoint_variants.is_endpoint(source):
        return endpoint_variants.make_variant(workspace, source)
    plain, engine, settings = parse_source(source)
    # 2. An artifact.
    folder = None
    if models.is_artifact(plain):
        variant = _artifact(workspace, plain)
    # 3. A GGUF file, or a model.
    else:
        folder = _folder_of_gguf(workspace, plain)
        card = models.resolve(workspace, str(folder or plain))
        variant = Variant(
            name=short_name(card.id),
            source=source,
            kind="model",
            model_path=card.path,
            original_path=card.path,
            serving=serving or Serving(),
            bytes_on_disk=card.weights_bytes,
        )
    # 4. The engine: the one written here, else that of the file or of the recipe.
    chosen = engine or (serving_engines.choose_engine("gguf") if folder else variant.serving.engine)
    if chosen == AUTO:
        is_file = folder is not None or variant.gguf is not None
        served = _choose_engine(workspace, variant, settings, is_file=is_file, streams=streams)
    else:
        served = _with_settings(on_engine(variant, chosen), settings)
    return served.model_copy(update={"source": source}) if engine or settings else served


def split_engine(source: str) -> tuple[str, EngineChoice | None]:
    """Return the source without what is written behind it, and the engine. Raises RequestError for an unknown name."""
    parts = parse_source(source)
    return parts.plain, parts.engine


def with_engine(source: str, engine: str | None) -> str:
    """Return the source to be served by that engine, unless it names one or is an address. Raises RequestError for an
    unknown one."""
    is_address = source.startswith(("http://", "https://")) or endpoint_variants.is_endpoint(source)
    if engine is None or is_address:
        return source
    parts = parse_source(source)
    return source if parts.engine else write_source(parts._replace(engine=parse_source(f"{ENGINE}{engine}").engine))


def _with_settings(variant: Variant, settings: Mapping[str, str]) -> Variant:
    """Return the variant with settings, which its name then says. Raises RequestError."""
    if not settings:
        return variant
    name = f"{variant.name}{source_settings.name_settings(settings)}"
    return variant.model_copy(update={"name": name, "serving": apply_settings(variant.serving, settings)})


def on_engine(variant: Variant, engine: EngineName) -> Variant:
    """Return the variant served by that engine; llama.cpp and OpenVINO serve the GGUF file that an original was
    imported from, or that an artifact has."""
    title = serving_engines.ENGINES[engine].title
    moved = variant.model_copy(update={"serving": variant.serving.on_engine(engine)})
    if engine != "vllm" or variant.serving.engine_name != "vllm":
        moved = moved.model_copy(update={"name": f"{variant.name} on {title}"})
    if engine not in serving_engines.list_readers("gguf"):
        return moved
    file = gguf.find_original(Path(variant.model_path)) if variant.model_path else None
    if file is None:
        return moved
    if (speculation := variant.speculation) is not None and speculation.draft_path is not None:
        draft = gguf.find_original(Path(speculation.draft_path))
        speculation = speculation.model_copy(update={"draft_gguf": str(draft) if draft else None})
    size = gguf.size_of_parts(file)
    name = f"{gguf.type_in_name(file)} on {title}" if variant.kind == "model" else moved.name
    changes = {"gguf": str(file), "name": name, "bytes_on_disk": size, "speculation": speculation}
    return moved.model_copy(update=changes)


def _choose_engine(
    workspace: Workspace, variant: Variant, settings: Mapping[str, str], *, is_file: bool, streams: int
) -> Variant:
    """Return the variant on the engine that `engine_choice` names, with the reason.

    Of a GGUF file (`is_file`) only engines that read it are asked, and only engines that take the settings. Raises
    ImpossibleStack if none serves it, RequestError if none takes the settings.
    """
    # 1. The engines that take the settings, and those of them that serve it here.
    every, refused = dict[EngineName, Variant](), list[RequestError]()
    for engine in serving_engines.ENGINES:
        try:
            every[engine] = _with_settings(on_engine(variant, engine), settings)
        except RequestError as error:
            refused.append(error)
    offered = {engine: served for engine, served in every.items() if served.gguf or not is_file}
    able = [engine for engine, served in offered.items() if _find_refusal(served) is None]
    if not offered:
        raise refused[0]
    if not able:
        _check_engine(next(iter(offered.values())))
    # 2. Choose one.
    readers = serving_engines.list_readers("gguf" if is_file else "safetensors")
    read = {engine for engine in every if engine in readers or every[engine].gguf}
    words = {True: "GGUF files", False: "safetensors"}[is_file]
    facts = OpenChoice(
        able=able,
        only_reads=words if len(read) == 1 else None,
        installed=frozenset(engine for engine in able if engine_status.serves(workspace.settings, engine)),
        measured=measured_engines.find_comparisons(workspace, str(variant.model_path), Load("closed", streams)),
        hardware=served_hardware(every[able[0]]),
        streams=streams,
    )
    choice = engine_choice.choose(facts)
    return every[choice.engine].model_copy(update={"engine_reason": choice.sentence})


def _folder_of_gguf(workspace: Workspace, source: str) -> Path | None:
    """Return the folder that was imported from a GGUF file; None where the source is no such file. Raises
    UnknownModel if it was not imported yet, InvalidModel."""
    file = paths.find_file(source) if source.lower().endswith(gguf.SUFFIX) else None
    if file is None:
        return None
    folder = sources.folder(workspace.settings.models, str(file), gguf.read_model(file).sha256)
    if not folder.is_dir():
        raise UnknownModel(
            f"{file.name} was not imported yet, and its tokenizer is read from what an import makes of it: run "
            f"`whetstone models import {source}`, then evaluate it."
        )
    return folder


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
    return Variant(
        name=short_name(source), source=source, kind="url", url=url, served_name=unquote(parts.fragment) or None
    )


def check_served(workspace: Workspace, variants: list[Variant]) -> None:
    """Raise ImpossibleStack for an artifact that this machine cannot serve, such as one made for a GPU."""
    for variant in variants:
        if variant.kind == "url":
            continue
        _check_engine(variant)
        if variant.kind == "artifact" and (why := why_unserved(workspace, variant.source)):
            raise ImpossibleStack(f"{variant.name} cannot be served here: {why}.")


def _check_engine(variant: Variant) -> None:
    """Raise ImpossibleStack if the engine does not serve this variant here, and RequestError for more threads than
    cores."""
    # 1. Format, the file itself, speculation, cache and devices.
    serving = variant.serving
    if (unsupported := _find_refusal(variant)) is not None:
        raise ImpossibleStack(f"{variant.name}: {unsupported.sentence}")
    # 2. Threads.
    cores = len(os.sched_getaffinity(0))
    if (most := max(serving.threads or 1, serving.batch_threads or 1)) > cores:
        raise RequestError(f"{variant.name}: {most} threads are more than the {cores} cores here: set {cores}.")


def why_engine_refuses(variant: Variant) -> str | None:
    """Return why the variant's engine does not serve it here, in one sentence; None where it does."""
    unsupported = _find_refusal(variant)
    return unsupported.sentence if unsupported else None


def _find_refusal(variant: Variant) -> serving_engines.Unsupported | None:
    """Return why the variant's engine does not serve it here, by the table and then by its GGUF file."""
    unsupported = find_unsupported(_combination(variant))
    if unsupported is not None or variant.gguf is None:
        return unsupported
    if variant.serving.engine == "llama.cpp":
        speculation = variant.speculation
        if speculation and speculation.draft_path and not speculation.draft_gguf:
            return llama_cpp_speculation.unread_draft(Path(speculation.draft_path).name)
        return llama_cpp_speculation.find_unsupported_option(speculation)
    if variant.serving.engine != "openvino":
        return None
    model = gguf.read_model(Path(variant.gguf))
    head = model.parts[0]
    return serving_engines.find_unread_gguf(head.architecture, model.tensor_types, model.values, len(model.parts))


def _combination(variant: Variant) -> serving_engines.Combination:
    serving = variant.serving
    return serving_engines.Combination(
        engine=serving.engine_name,
        format="gguf" if variant.gguf else "safetensors",
        hardware=served_hardware(variant),
        speculation=variant.speculation.method if variant.speculation else None,
        cache=serving.kv_cache_dtype,
        parallel=serving.tensor_parallel,
    )


def served_hardware(variant: Variant) -> serving_engines.Hardware:
    """Return where the variant would run here. llama.cpp and OpenVINO take the processor, whatever else there is."""
    if variant.neuron:
        return "neuron"
    return "cuda" if variant.serving.engine_name == "vllm" and probe.accelerators() else "cpu"


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
            manifest = artifacts.show(workspace, artifact_id(source)).manifest if source.startswith("a-") else None
        except NotFound:
            continue
        if manifest is not None and (why := (manifest.quality or {}).get("below_floor")):
            warnings.append(f"{manifest.recipe.name} ({source}): {why}")
    return warnings


def why_unserved(workspace: Workspace, source: str) -> str | None:
    """Why this machine's server cannot read an artifact; None where it can."""
    manifest = artifacts.show(workspace, artifact_id(source)).manifest
    if manifest.for_neuron:
        return why_unserved_on_neuron(workspace, manifest.compile_key or {})
    return why_recipe_unserved(workspace, manifest.parent, manifest.recipe)


def why_recipe_unserved(workspace: Workspace, model: ModelCard, recipe: Recipe) -> str | None:
    """Why this machine's server cannot read what the recipe makes of the model; None where it can."""
    facts = targets.rule_facts(targets.find(workspace, "local"), model, None)
    return kernel_rules.find_unserved_format(model, recipe, facts) or kernel_rules.find_unserved(model, recipe, facts)


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
    """Number the names that occur more than once, so that charts and tables tell them apart."""
    counts: dict[str, int] = {}
    named = []
    for variant in variants:
        count = counts[variant.name] = counts.get(variant.name, 0) + 1
        named.append(variant if count == 1 else variant.model_copy(update={"name": f"{variant.name} ({count})"}))
    return named


def _artifact(workspace: Workspace, source: str) -> Variant:
    """`a-...`, or `a-...@tokens=N` with another draft length than its recipe's; 0 is without speculation."""
    plain_id, _, written = source.partition(TOKENS)
    shown = artifacts.show(workspace, plain_id)
    if shown.manifest.is_draft:
        method = getattr(shown.manifest.recipe.step("speculate"), "method", "draft")
        raise RequestError(
            f"{plain_id} is a draft for {shown.manifest.parent.id} and nothing by itself: name it in a recipe "
            f"(`speculate: {{method: {method}, draft: {plain_id}}}`) and evaluate what that makes."
        )
    manifest = _with_draft_tokens(shown.manifest, plain_id, written) if TOKENS in source else shown.manifest
    variant = artifact_variants.variant_of_artifact(workspace.settings, shown.path, manifest, plain_id)
    return variant.model_copy(update={"serving": manifest.recipe.serving})


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
