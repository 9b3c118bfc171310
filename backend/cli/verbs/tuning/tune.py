"""`whetstone tune MODEL`: find the best stack for a model within limits and a budget; list, show, stop and resume
searches."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from backend import service
from backend.cli.options import limits
from backend.cli.options.load_options import read_levels
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit, next_command, say, table
from backend.domain.errors import InvalidOptions
from backend.domain.figures import counted, figure, span, streams
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.rivals import AUTO_TUNE, Rival
from backend.domain.tuning.stacks import WEIGHTS, SpaceChoice
from backend.domain.validation import validate_fields
from backend.service import Workspace
from backend.service.jobs import supervisors
from backend.service.tuning import tunings
from backend.service.tuning.tunings import SearchPlan, SearchView

POLL_S = 2.0
RIVAL_HEADER = ("against", "stack", "outcome", "why")
DEFAULTS = TuneRequest(model="")
Search = Annotated[str, typer.Argument(help="A search's id, t-...")]
Wait = Annotated[bool, typer.Option("--wait/--detach", help="Wait until the search ends, or leave it to the studio.")]
app = typer.Typer(no_args_is_help=True)


def tune_command(
    model: Annotated[str, typer.Argument(help="A model: an id such as `starter`, or a folder.")],
    goal: Annotated[str, typer.Option(help="cost, latency, throughput or front.")] = DEFAULTS.goal,
    concurrency: Annotated[str, typer.Option(metavar="STREAMS", help="Loads, such as 1,4,16.")] = "1,4",
    ttft: limits.MaxTtft = None,
    tpot: limits.MaxTpot = None,
    percentile: limits.PercentileName = limits.USUAL,
    max_kl: Annotated[float | None, number_option("Mean KL divergence up to this, in nats per token.")] = None,
    max_kl_p99: Annotated[
        float | None, number_option("KL divergence of the 99th percentile of tokens up to this, in nats.")
    ] = None,
    answer_length: Annotated[
        float | None,
        number_option(
            "Answers at most this share longer or shorter than the original's; the model ends them.", metavar="SHARE"
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK", help="Score this lm-eval task, as in `whetstone evaluate`. Repeatable."),
    ] = None,
    task_limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many samples of each task.")] = None,
    max_task_loss: Annotated[
        float, number_option("A task's score at most this much worse than the original's.", metavar="POINTS")
    ] = DEFAULTS.max_task_loss,
    budget: Annotated[
        float, number_option("Time of all its jobs.", least=0.1, metavar="MINUTES")
    ] = DEFAULTS.budget_min,
    disk: Annotated[float, number_option("Disk for the weights that it makes.", metavar="GB")] = DEFAULTS.disk_gb,
    engines: Annotated[str | None, typer.Option(help="Only these engines: vllm,llama.cpp,openvino.")] = None,
    weights: Annotated[str | None, typer.Option(help=f"Only these weights, of {', '.join(WEIGHTS)}.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=A,B", help="Also try these values of a serving setting. Repeatable."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help=f"A stack of your own that races along, or `{AUTO_TUNE}`: what vLLM's rule picks. Repeatable.",
        ),
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Workload of the load, as in `whetstone evaluate`.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = DEFAULTS.max_tokens,
    price_per_hour: Annotated[float | None, number_option("Price of this machine, in USD.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search and of the load.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the space and the first step.")] = False,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Find the best stack for a model: engine, weights, speculation, cache and settings, within limits and a budget.

    Every trial is an evaluation that stays. The search stops with Ctrl-C and goes on with `whetstone tunings resume`.
    """
    workspace = service.open_workspace()
    request = validate_fields(
        TuneRequest,
        {
            "model": model,
            "goal": goal,
            "streams": read_levels(concurrency),
            "limits": limits.read_limits(ttft, tpot, percentile),
            "max_kl": max_kl,
            "max_kl_p99": max_kl_p99,
            "max_length_change": answer_length,
            "tasks": tuple(task or ()),
            "task_limit": task_limit,
            "max_task_loss": max_task_loss,
            "budget_min": budget,
            "disk_gb": disk,
            "space": SpaceChoice(engines=_split(engines), weights=_split(weights), settings=_read_settings(setting)),
            "against": tuple(against or ()),
            "workload": workload,
            "max_tokens": max_tokens,
            "price_per_hour": price_per_hour,
            "seed": seed,
        },
        InvalidOptions,
    )
    if dry_run:
        plan = tunings.plan(workspace, request)
        emit(plan, as_json=json, text=plan_text(plan))
        return
    view = tunings.begin(workspace, request)
    _follow(workspace, view, wait=wait, json=json)


@app.command("list")
def list_searches(json: Json = False) -> None:
    """List searches, the newest first."""
    views = tunings.listing(service.open_workspace())
    rows = [
        (
            view.id,
            view.state,
            view.title,
            _winner_name(view),
            f"{view.spent_s / 60:.1f} of {view.request.budget_min:g} min",
            f"{view.created_at:%Y-%m-%d %H:%M}",
        )
        for view in views
    ]
    text = (
        table(("search", "state", "for", "best so far", "spent", "created (UTC)"), rows)
        if rows
        else "There is no search yet."
    )
    emit(views, as_json=json, text=text)


@app.command()
def show(search: Search, json: Json = False) -> None:
    """Show a search: its ranking, with the reason for each stack that lost."""
    view = tunings.show(service.open_workspace(), search)
    emit(view, as_json=json, text=search_text(view))


@app.command()
def stop(search: Search, json: Json = False) -> None:
    """Stop a search. What was measured stays, and `resume` goes on with it."""
    view = tunings.stop(service.open_workspace(), search)
    emit(view, as_json=json, text=f"{view.id} is stopped.\n{next_command('tunings', 'resume', view.id)}")


@app.command()
def resume(search: Search, wait: Wait = True, json: Json = False) -> None:
    """Let a stopped search go on."""
    workspace = service.open_workspace()
    _follow(workspace, tunings.resume(workspace, search), wait=wait, json=json)


def _follow(workspace: Workspace, view: SearchView, *, wait: bool, json: bool) -> None:
    """Advance the search until it ends, and print it; without `wait` say how it goes on."""
    if not wait:
        emit(
            view,
            as_json=json,
            text=f"{view.id} is begun: {view.steps[-1]}.\n{next_command('tunings', 'show', view.id)}",
        )
        return
    printed = 0
    while True:
        for line in view.steps[printed:]:
            say(f"{span(view.spent_s)}: {line}")
        printed = len(view.steps)
        if view.state != "running":
            break
        supervisors.ensure_running(workspace)
        time.sleep(POLL_S)
        view = tunings.advance(workspace, view.id)
    emit(view, as_json=json, text=search_text(view))


def plan_text(plan: SearchPlan) -> str:
    stacks = "\n".join(f"  {name}" for name in plan.stacks)
    return (
        f"{len(plan.stacks)} stacks against {plan.baseline}, the likeliest first:\n{stacks}\n"
        f"First step, about {span(plan.first_seconds)}: {plan.first}"
    )


def search_text(view: SearchView) -> str:
    """Return the ranking as a table, then what was not tried and what to do next."""
    loads = view.request.streams
    header = ("stack", *(f"tok/s at {load}" for load in loads), "TTFT ms", "TPOT ms", "KL", "standing", "why")
    rows = []
    for one in view.ranked:
        levels = [one.trial.at(load) for load in loads]
        first = next((level for level in reversed(levels) if level is not None), None)
        rows.append(
            (
                one.trial.name,
                *("-" if level is None else figure(level.tokens_per_s) for level in levels),
                "-" if first is None or first.ttft_ms is None else figure(first.ttft_ms),
                "-" if first is None or first.tpot_ms is None else figure(first.tpot_ms),
                "-" if one.trial.kl is None else figure(one.trial.kl),
                one.standing,
                one.words,
            )
        )
    lines = [f"{view.id}: {view.title}, {view.state} after {span(view.spent_s)} of {view.request.budget_min:g} min."]
    lines += [view.ended] if view.ended else []
    lines += (
        [table(header, rows), f"TTFT and TPOT: {view.request.limits.percentile} at {streams(loads[-1])}."]
        if rows
        else []
    )
    if rows:
        lines.append(table(RIVAL_HEADER, [rival_cells(one) for one in view.rivals]))
    if view.untried:
        name, why = next(iter(view.untried.items()))
        lines.append(f"Not measured: {counted(len(view.untried), 'stack')}, such as {name} ({why.rstrip('.')}).")
    winner = view.winner
    if winner is not None:
        lines.append(next_command("serve", view.sources[winner.trial.key]))
    elif view.ranked and view.state != "running":
        lines.append(f"No stack meets all limits. Nearest: {view.ranked[0].trial.name}, {view.ranked[0].words}.")
    return "\n".join(lines)


def rival_cells(one: Rival) -> tuple[str, str, str, str]:
    return one.title, one.name or "-", one.outcome, one.words


def _winner_name(view: SearchView) -> str:
    return view.winner.trial.name if view.winner else "-"


def _split(written: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in written.split(",") if part.strip()) if written else ()


def _read_settings(written: list[str] | None) -> dict[str, tuple[str, ...]]:
    """Read `threads=1,2`. Raises InvalidOptions."""
    settings = {}
    for pair in written or ():
        name, _, values = pair.partition("=")
        if not values:
            raise InvalidOptions(f"is wrong: `{pair[:60]}` is no NAME=VALUE,VALUE.", field="setting")
        settings[name] = _split(values)
    return settings
