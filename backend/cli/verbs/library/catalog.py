"""`whetstone catalog ...`: the models Whetstone knows, what is published of them beside what is checked here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.output import Json, emit, table
from backend.domain.errors import RequestError
from backend.domain.model.facts import PublishedModel
from backend.domain.planner.engine_fit import EngineFit
from backend.domain.planner.footprint import Footprint
from backend.domain.planner.token_work import flops_per_token
from backend.present.words.engines import fit_sentence
from backend.service.models import catalog, technique_checks
from backend.service.models.catalog import CatalogEntry, CatalogLine
from backend.service.models.technique_checks import TechniqueCheck
from backend.service.presets import presets
from backend.service.presets.presets import KnownPreset

app = typer.Typer(no_args_is_help=True)
PER_PAGE = 100
MOST_BILLIONS = 1e9
"""The same limit as on the page; the database can compare larger numbers."""
MARKS = {"Yes": "yes", "No": "no", "": "-"}


@app.command("list")
def list_models(
    origin: Annotated[
        list[str] | None, typer.Option(help="published, starter, imported or folder. Repeatable.")
    ] = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            help="A technique that must work, as checked here (awq, w8a8, draft, ngram, compile, ...), or a "
            "published column: quantization, speculative_decoding, speculative_decoding_with_provided_draft. "
            "If repeated, all must work."
        ),
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Model family, such as LLaMA or Mistral. Repeatable.")
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            help="Only models that fit there: an instance such as ml.g5.12xlarge, sagemaker:ml.g5.12xlarge for the "
            "rules of AWS's toolkit, or accelerator:rtx4090. Techniques are checked there instead of on this "
            "machine."
        ),
    ] = None,
    search: Annotated[
        str, typer.Option(help="Words that must all occur in id, family, provider, hub id or folder.")
    ] = "",
    licence: Annotated[list[str] | None, typer.Option(help="Licence, such as apache-2.0. Repeatable.")] = None,
    min_size: Annotated[float | None, typer.Option(min=0, help="Least parameters, in billions.")] = None,
    max_size: Annotated[float | None, typer.Option(min=0, help="Most parameters, in billions.")] = None,
    min_context: Annotated[int | None, typer.Option(min=0, help="Shortest context, in tokens.")] = None,
    max_context: Annotated[int | None, typer.Option(min=0, help="Longest context, in tokens.")] = None,
    sort: Annotated[
        str,
        typer.Option(
            help="catalog, name, family, parameters, context, kv or licence. A minus in front reverses the order."
        ),
    ] = "catalog",
    page: Annotated[int | None, typer.Option(min=1, help="Only this page, of --per-page models.")] = None,
    per_page: Annotated[int, typer.Option(min=1, max=1000)] = PER_PAGE,
    json: Json = False,
) -> None:
    """List models: published, bundled and your own."""
    workspace = service.open_workspace()
    catalog_filter = catalog.make_filter(
        workspace,
        origins=tuple(origin or ()),
        techniques=tuple(technique or ()),
        families=tuple(family or ()),
        target=instance,
        words=search,
        licences=tuple(licence or ()),
        min_parameters=_billions(min_size),
        max_parameters=_billions(max_size),
        min_context=min_context,
        max_context=max_context,
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
    )
    lines = catalog.listing(workspace, catalog_filter, page or 1, per_page=per_page if page else None)
    emit([_document(line, instance) for line in lines], as_json=json, text=_text(lines, instance))


def _billions(value: float | None) -> int | None:
    """Convert billions to a count. Raises RequestError if it is not finite or larger than any model."""
    if value is None:
        return None
    if not value <= MOST_BILLIONS:
        raise RequestError(f"No model has {value} billion parameters: give a size such as 7 or 0.5.")
    return round(value * 1e9)


def _document(line: CatalogLine, instance: str | None) -> dict[str, Any]:
    entry = line.entry
    return _facts(entry) | {
        "checked_on": instance or "local",
        "checked": _check_documents(line.checks),
        "fits": line.fits,
    }


def _check_documents(checks: Sequence[TechniqueCheck], *more: str) -> dict[str, Any]:
    """Return, for each technique, whether it works, the reasons against it and the other fields of the check."""
    return {
        check.kind: {
            "supported": check.works,
            "reason": " ".join(check.reasons),
            **{name: getattr(check, name) for name in more},
        }
        for check in checks
    }


def _facts(entry: CatalogEntry) -> dict[str, Any]:
    model = entry.model
    return {
        "id": entry.id,
        "source": entry.source,
        "origin": entry.origin,
        "family": entry.family,
        "published": entry.published.model_dump(),
        "preoptimized": entry.preoptimized,
        "precompiled": entry.precompiled,
        "parameters": model.parameters,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "context": model.max_positions,
        "licence": entry.licence,
        "gated": model.gated if isinstance(model, PublishedModel) else None,
        "draft": model.draft,
    }


def _text(lines: list[CatalogLine], instance: str | None) -> str:
    kinds = technique_checks.kind_titles()
    rows = [
        (
            line.entry.id,
            line.entry.family,
            f"{line.entry.model.parameters / 1e9:,.3g}",
            line.entry.model.max_positions,
            "/".join(MARKS[cell] for cell in line.entry.published.model_dump().values()),
            "yes" if line.fits else "no",
            *("yes" if check.works else "no" for check in line.checks),
        )
        for line in lines
    ]
    header = ("model", "family", "B parameters", "context", "published q/s/d", "fits", *kinds)
    where = _where_text(instance)
    legend = (
        "published: quantization / speculative decoding / with a provided draft, from the documentation page; - "
        "means blank."
        f"\nThe next columns are checked for {where}; `whetstone catalog show MODEL` shows the reasons."
    )
    return f"{table(header, rows)}\n\n{len(lines)} models. {legend}"


def _where_text(instance: str | None) -> str:
    return "this machine" if instance in {None, "local"} else str(instance)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A model id, a hub id or a folder.")],
    instance: Annotated[str, typer.Option(help="Where to check the techniques: local, or an instance.")] = "local",
    json: Json = False,
) -> None:
    """Show a model's card, its techniques (published, and checked with reasons), its memory on each instance and its
    presets."""
    workspace = service.open_workspace()
    # 1. Find the model and check what works on it.
    entry = catalog.show(workspace, model)
    checks = technique_checks.check_all(workspace, entry.model, instance)
    memory = catalog.memory(workspace, entry.model)
    fits = [] if ":" in instance else technique_checks.list_engine_fits(workspace, entry.model, instance)
    # 2. Collect all of it in one document.
    document = entry.model.model_dump(mode="json") | _facts(entry) | {"checked_on": instance}
    document["flops_per_token"] = flops_per_token(entry.model)
    document |= {
        "checked": _check_documents(checks, "sources", "nearest", "kernel"),
        "memory": [_memory_document(fit) for fit in memory],
        "engines": [fit.model_dump(mode="json") | {"fits": fit.fits} for fit in fits],
    }
    # 3. Add its presets.
    known = presets.listing(workspace, presets.PresetFilter(model=entry.source))
    document["presets"] = [
        {
            "id": preset_view.preset.id,
            "goal": preset_view.preset.goal,
            "target": preset_view.preset.target,
            "origin": preset_view.origin,
        }
        for preset_view in known
    ]
    parts = [_card(entry, checks, memory, instance), *_engines(fits, instance), _presets(known)]
    emit(document, as_json=json, text="\n\n".join(parts))


def _memory_document(each: Footprint) -> dict[str, Any]:
    room = each.memory
    return {
        "instances": each.names,
        "fits": each.fits,
        "device": each.device.name,
        "devices": each.device.units,
        "memory_bytes_per_device": each.device.memory_bytes,
        "tensor_parallel": room.tensor_parallel,
        "replicas": each.replicas,
        "weights_bytes_per_device": room.weights_per_device,
        "tokens_in_cache": room.tokens if each.fits else (0, 0),
    }


def _card(entry: CatalogEntry, checks: list[TechniqueCheck], memory: list[Footprint], instance: str) -> str:
    card = _facts(entry) | entry.model.model_dump(mode="json", exclude={"sources", "license", "max_positions", "draft"})
    card |= {"flops_per_token": flops_per_token(entry.model)}
    lines = [f"{name:22} {value}" for name, value in card.items() if name != "published" and value not in (None, {})]
    cells = entry.published.model_dump().items()
    published = "".join(f"\n  {name.replace('_', ' '):42} {cell or '(blank)'}" for name, cell in cells)
    return "\n\n".join(["\n".join(lines), f"As published:{published}", _checks(checks, instance), _memory_rows(memory)])


def _checks(checks: list[TechniqueCheck], instance: str) -> str:
    lines = [f"As checked for {_where_text(instance)}:"]
    for check in checks:
        works = f"works, served by {check.kernel}" if check.kernel else "works"
        lines.append(f"  {check.title_with_options:22} {works if check.works else 'no: ' + ' '.join(check.reasons)}")
        if check.nearest:
            lines.append(f"  {'':22} closest alternative: {check.nearest}")
    return "\n".join(lines)


def _engines(fits: list[EngineFit], instance: str) -> list[str]:
    lines = [f"  {fit_sentence(fit)}" for fit in fits]
    return ["\n".join([f"As it is on {_where_text(instance)}:", *lines])] if lines else []


def _presets(known_presets: list[KnownPreset]) -> str:
    if not known_presets:
        return (
            "Presets: none for this model. `whetstone presets list` shows those of other models, which can be "
            "applied to it."
        )
    rows = [(preset.preset.id, preset.preset.goal, preset.preset.target) for preset in known_presets]
    return f"Presets (`whetstone presets show ID`):\n{table(('id', 'goal', 'target'), rows)}"


def _memory_rows(memory: list[Footprint]) -> str:
    rows = [
        (
            f"{fit.device.units} x {fit.device.name}",
            "yes" if fit.fits else "no",
            fit.memory.tensor_parallel,
            f"{fit.memory.weights_per_device / 1e9:,.3g}",
            f"{fit.device.memory_bytes / 1e9:,.3g}",
            f"{fit.memory.tokens[0]:,}" if fit.fits else "-",
            ", ".join(fit.names),
        )
        for fit in memory
    ]
    header = ("hardware", "fits", "split over", "GB of weights each", "GB each", "tokens in the cache", "instances")
    head = "Estimated memory of the original (docs/decisions/0010-planner.md):"
    return f"{head}\n{table(header, rows)}"
