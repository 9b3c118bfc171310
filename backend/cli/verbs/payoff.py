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
        str, typer.Argument(help="The model to speculate for: an id, a folder, or an artifact that does not speculate.")
    ],
    recipe: Annotated[Path | None, typer.Option(help="A recipe file or name whose serving settings are used.")] = None,
    draft_parameters: Annotated[str, typer.Option(help="Size of the draft in parameters, such as 5M or 500K.")] = "5M",
    draft: Annotated[str | None, typer.Option(help="A draft made by `train`, instead of a size.")] = None,
    streams: Annotated[str, typer.Option(help="Numbers of streams to measure, such as 1,4,8,16.")] = ",".join(
        map(str, draft_payoff.STREAMS)
    ),
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds over all servers and streams; more rounds narrow the interval.")
    ] = draft_payoff.ROUNDS,
    again: Annotated[bool, typer.Option("--again", help="Measure again even if a map exists.")] = False,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Show which acceptance a draft must reach to pay off, by streams. Measured once in minutes, then stored."""
    workspace = service.open_workspace()
    # 1. Resolve the model, its settings and the draft.
    serving = recipe_files.read_file(recipe).serving if recipe else None
    spec = measuring.prepare(workspace, model, _read_numbers(streams), rounds, serving=serving)
    own = _trained_draft(workspace, spec, draft) if draft else None
    shape = own.shape if own else _with_size(workspace, spec, draft_parameters)
    # 2. Use a stored map, or measure one.
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
    # 3. Print the answer.
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
            f"{artifact} is not a draft trained for {card.id}: give {{}} a draft of `whetstone train`.", "draft"
        )
    return draft


def read_parameters(written: str) -> int:
    """Raises RequestError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMB]?)", written.strip().upper())
    if match is None or not (number := round(float(match.group(1)) * SUFFIXES[match.group(2)])):
        raise RequestError(
            f"`{written[:40]}` is not a number of parameters: write {{}} such as 5M or 500K.", "draft_parameters"
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
    # 1. The gain at each number of streams and acceptance.
    rows = []
    for streams in payoff_map.streams:
        best = [payoff_map.best(streams, draft, acceptance) for acceptance in SHOWN]
        rows.append((streams, *(f"{figure(gain)}x at {tokens}" for tokens, gain in best)))
    header = ("streams", *(f"{acceptance:.0%}" for acceptance in SHOWN))
    # 2. A trained draft comes first.
    own = (
        [
            words.measured(lengths),
            *(f"  {prediction}" for prediction in words.predictions(payoff_map, draft, lengths)),
            "",
        ]
        if lengths
        else []
    )
    lines = [
        *own,
        f"{words.subject(payoff_map, draft)}:",
        *(f"  {answer}" for answer in words.answers(payoff_map, draft)),
        "",
    ]
    lines += ["Gain at the best number of draft tokens, by acceptance:", table(header, rows), ""]
    return "\n".join(
        [
            *lines,
            words.sureness(payoff_map, draft),
            words.provenance(payoff_map),
            *(f"warning: {warning}" for warning in payoff_map.warnings),
        ]
    )
