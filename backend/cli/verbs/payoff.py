"""`whetstone payoff`: which acceptance a draft must reach to pay, before there is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.options.job_options import JobOptions, with_job_options
from backend.cli.output import Json, emit, table
from backend.cli.submit_and_wait import Wait, submit_and_wait
from backend.domain.errors import RequestError
from backend.domain.figures import figure
from backend.domain.jobs.jobs import PayoffSpec
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import BreakEven, DraftShape, PayoffMap
from backend.domain.recipe.recipe import ORIGINAL
from backend.present.words import payoff_map as words
from backend.service import Workspace
from backend.service.evaluations import payoff as measuring
from backend.service.jobs import artifacts, jobs
from backend.service.plans import payoff_maps, recipe_files, training
from backend.service.plans.payoff_maps import TrainedDraft

SHOWN = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptances of the table."""
SUFFIXES = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}


@with_job_options(timeout=False)
def payoff_command(
    job_options: JobOptions,
    model: Annotated[
        str, typer.Argument(help="The target: a model id, a folder, or an artifact that does not speculate.")
    ],
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe's file or name: a model is served by its settings.")
    ] = None,
    draft_parameters: Annotated[str, typer.Option(help="Of the draft that is asked about, such as 5M or 500K.")] = "5M",
    draft: Annotated[
        str | None, typer.Option(help="Instead of a size, a draft that `train` made: what it pays.")
    ] = None,
    streams: Annotated[str, typer.Option(help="Streams to measure at, such as 1,4,8,16.")] = ",".join(
        map(str, draft_payoff.STREAMS)
    ),
    rounds: Annotated[
        int, typer.Option(min=1, help="Of all servers and streams; more narrow the interval.")
    ] = draft_payoff.ROUNDS,
    again: Annotated[bool, typer.Option("--again", help="Measure although there is a map of it already.")] = False,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Say which share of its tokens a draft must get right to pay, by streams: measured once in minutes, then kept."""
    workspace = service.open_workspace()
    serving = recipe_files.read_file(recipe).serving if recipe else None
    spec = measuring.prepare(workspace, model, _read_numbers(streams), rounds, serving=serving)
    own = _trained_draft(workspace, spec, draft) if draft else None
    shape = own.shape if own else _with_size(workspace, spec, draft_parameters)
    payoff_map = None if again else payoff_maps.find_for_spec(workspace, spec)
    if payoff_map is None:
        submit = partial(
            measuring.submit,
            workspace,
            spec,
            submission=jobs.submission_key(workspace, job_options.key),
            terms=job_options.terms,
        )
        payoff_map = payoff_maps.map_of_job(submit_and_wait(workspace, submit, wait=wait, as_json=json))
        assert payoff_map is not None
    lengths = own.lengths if own else ()
    emit(payoff_document(payoff_map, shape, lengths), as_json=json, text=payoff_text(payoff_map, shape, lengths))


def _with_size(workspace: Workspace, spec: PayoffSpec, written: str) -> DraftShape:
    """Raises RequestError."""
    parameters = read_parameters(written)
    measuring.check_size(workspace, spec, parameters)
    return draft_payoff.draft_shape(parameters)


def _trained_draft(workspace: Workspace, spec: PayoffSpec, artifact: str) -> TrainedDraft:
    """Raises NotFound, RequestError for what is no draft of `train`, or one of another model."""
    manifest = artifacts.show(workspace, artifact).manifest
    card, _ = measuring.require_original(workspace, spec.variants[0])
    recipe = training.draft_recipe(artifact, manifest.training) if manifest.training else ORIGINAL
    draft = payoff_maps.find_trained_draft(workspace, card, recipe)
    if draft is None:
        raise RequestError(
            f"{artifact} is no draft that was trained for {card.id}: give {{}} of `whetstone train`.", "draft"
        )
    return draft


def read_parameters(written: str) -> int:
    """Raises RequestError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMB]?)", written.strip().upper())
    if match is None or not (number := round(float(match.group(1)) * SUFFIXES[match.group(2)])):
        raise RequestError(
            f"`{written[:40]}` is no number of parameters: write {{}} such as 5M or 500K.", "draft_parameters"
        )
    return number


def _read_numbers(written: str) -> tuple[int, ...]:
    parts = [part.strip() for part in written.split(",")]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def payoff_document(payoff_map: PayoffMap, draft: DraftShape, lengths: Sequence[float] = ()) -> dict[str, Any]:
    """The document other tools may rely on. `trained`: of a draft whose tokens a step at 1, 2, ... proposed are
    known."""
    rows = []
    for streams in payoff_map.streams:
        least = payoff_map.break_even(streams, draft)
        rows.append({"streams": streams, **(least._asdict() if least else dict.fromkeys(BreakEven._fields))})
    own = (
        {"trained": [_predict(payoff_map, draft, lengths, streams) for streams in payoff_map.streams]}
        if lengths
        else {}
    )
    return {"draft": draft.model_dump(), "break_even": rows, **own, "map": payoff_map.model_dump(mode="json")}


def _predict(payoff_map: PayoffMap, draft: DraftShape, lengths: Sequence[float], streams: int) -> dict[str, Any]:
    tokens, gain = payoff_map.best_known(streams, draft, lengths)
    return {"streams": streams, "tokens": tokens, "gain": gain, "interval": payoff_map.interval(gain)}


def payoff_text(payoff_map: PayoffMap, draft: DraftShape, lengths: Sequence[float] = ()) -> str:
    """The answer, the gains as a table, and how sure they are; of a draft of known tokens a step what it pays first."""
    rows = []
    for streams in payoff_map.streams:
        best = [payoff_map.best(streams, draft, acceptance) for acceptance in SHOWN]
        rows.append((streams, *(f"{figure(gain)}x at {tokens}" for tokens, gain in best)))
    header = ("streams", *(f"{acceptance:.0%}" for acceptance in SHOWN))
    own = (
        [words.measured(lengths), *(f"  {each}" for each in words.predictions(payoff_map, draft, lengths)), ""]
        if lengths
        else []
    )
    lines = [
        *own,
        f"{words.subject(payoff_map, draft)}:",
        *(f"  {each}" for each in words.answers(payoff_map, draft)),
        "",
    ]
    lines += ["Gain at the best tokens a guess, by acceptance:", table(header, rows), ""]
    return "\n".join(
        [
            *lines,
            words.sureness(payoff_map, draft),
            words.provenance(payoff_map),
            *(f"warning: {w}" for w in payoff_map.warnings),
        ]
    )
