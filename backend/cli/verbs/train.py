"""`whetstone train`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.options.job_options import JobOptions, with_job_options
from backend.cli.output import Json, emit, next_command
from backend.cli.submit_and_wait import Wait, outcome_document, submit_and_wait
from backend.domain.errors import InvalidOptions
from backend.domain.recipe.draft_training import KINDS, LOSS_NAMES, Training
from backend.domain.validation import validate_fields
from backend.present.words import drafts
from backend.service.jobs import jobs
from backend.service.plans import training


@with_job_options("cores", "memory_bytes")
def train_command(
    job_options: JobOptions,
    model: Annotated[str, typer.Argument(help="The model to train a draft for: an id such as `starter`, or a folder.")],
    kind: Annotated[str, typer.Option(help=f"Kind of draft: {', '.join(KINDS)}.")] = "small",
    loss: Annotated[
        str, typer.Option(help=f"Training objective: {', '.join(LOSS_NAMES)} (dashes also work).")
    ] = "lk_hybrid",
    minutes: Annotated[float, typer.Option(help="Time budget of the whole job, including the model's answers.")] = 10.0,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="A JSONL or Parquet file with prompts, or a text file with one prompt per paragraph. Default: bundled "
            "prompts."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Draft tokens per step, for which acceptance is measured.")] = 4,
    start: Annotated[
        str, typer.Option(help="How a small model starts: fresh (narrow), or pruned (layers of the model).")
    ] = "fresh",
    layers: Annotated[int | None, typer.Option(help="Layers of a small model.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of a fresh small model.")] = None,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature of the answers; half of them are greedy.")
    ] = 1.0,
    on_policy: Annotated[
        float, typer.Option(help="Share of batches whose answers come from the small model itself.")
    ] = 0.0,
    answers: Annotated[
        int | None, typer.Option(help="Maximum number of the model's answers. Default: as many as the time allows.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps. Default: as many as the time allows.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Train a draft for a model on the model's own answers. The job makes an artifact to use as `draft` in a
    `speculate` step."""
    workspace = service.open_workspace()
    # 1. Check the options.
    options = {
        "kind": kind,
        "loss": loss.replace("-", "_"),
        "minutes": minutes,
        "tokens": tokens,
        "start": start,
        "layers": layers,
        "hidden": hidden,
        "temperature": temperature,
        "on_policy": on_policy,
        "answers": answers,
        "steps": steps,
        "seed": seed,
    }
    spec = training.prepare(workspace, model, validate_fields(Training, options, InvalidOptions), prompts)
    # 2. Submit, and wait if requested.
    submit = partial(
        training.submit,
        workspace,
        spec,
        submission=jobs.submission_key(workspace, job_options.key),
        terms=job_options.terms,
    )
    ended = submit_and_wait(workspace, submit, wait=wait, as_json=json)
    # 3. Print the outcome.
    document = outcome_document(ended, "artifact", "path", "seconds", "peak_rss_bytes", "bytes_after", "training")
    emit(document, as_json=json, text=_text(model, document))


def _text(model: str, document: dict[str, Any]) -> str:
    training = document["training"]
    recipe = drafts.step(training, document["artifact"])["speculate"]
    fields = ", ".join(f"{name}: {value}" for name, value in recipe.items())
    return "\n".join(
        [
            f"{document['artifact']} is ready in {document['path']}",
            f"  {training['draft']['parameters'] / 1e6:.2f} M parameters, {document['bytes_after'] / 1e6:.1f} MB, "
            f"in {document['seconds']:.0f} s",
            f"  {drafts.training_words(training)}",
            f"  {drafts.acceptance_words(training)}",
            f"  {drafts.RULE}",
            f"Use it in a recipe: `- speculate: {{{fields}}}`, then",
            next_command("optimize", model, "--recipe", "FILE", "--then-evaluate"),
        ]
    )
