"""`whetstone recipe ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend import service
from backend.cli.options import goals
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit, table
from backend.cli.text.estimates import choice_text, estimate_text
from backend.domain.rules.plan import PlannedStep, Verdict
from backend.service.models import models
from backend.service.plans import auto_target, calibration, cases, estimates, recipe_files

app = typer.Typer(no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A recipe file, or the name of a bundled recipe.")]
Model = Annotated[str, typer.Option(help="A model id, a folder, or the JumpStart or hub id of a published model.")]
Target = Annotated[
    str,
    typer.Option(
        help="Where to run: local, local:cpu, local:gpu0, an instance such as ml.g5.12xlarge (with our engines), "
        "sagemaker:ml.g5.12xlarge (with AWS's toolkit), accelerator:rtx4090, or auto, the cheapest instance "
        "that fits."
    ),
]


@app.command("list")
def list_recipes(json: Json = False) -> None:
    """List the bundled recipes. `recipe show NAME` prints one as YAML."""
    recipes = {name: recipe_files.read_file(Path(name)) for name in recipe_files.bundled_names()}
    emit(
        recipes,
        as_json=json,
        text=table(("name", "what it is"), [(name, recipe_files.describe(name)) for name in recipes]),
    )


@app.command("show")
def show_recipe(recipe: File, json: Json = False) -> None:
    """Print a recipe as YAML, as it is read."""
    chosen = recipe_files.read_file(recipe)
    emit(chosen, as_json=json, text=recipe_files.write_text(chosen).rstrip())


@app.command()
def check(recipe: File, model: Model = "starter", target: Target = "local", json: Json = False) -> None:
    """Check a recipe: show the plan, or all reasons against it with the closest valid recipe. Exit 0 if valid, 2 if
    not."""
    workspace = service.open_workspace()
    # 1. Resolve the case.
    card, chosen = models.resolve_facts(workspace, model), recipe_files.read_file(recipe)
    calibration.find_file(chosen)
    case = cases.resolve(workspace, card, chosen, auto_target.resolve_target(workspace, card, chosen, target))
    verdict, where = case.verdict, case.target_name
    # 2. Print the verdict; exit 2 if it is refused.
    document = {
        "valid": verdict.valid,
        "target": where,
        "plan": list(verdict.plan.steps) if verdict.plan else [],
        "tensor_parallel": verdict.plan.tensor_parallel if verdict.plan else None,
        "notes": list(verdict.plan.notes) if verdict.plan else [],
        "reasons": list(verdict.reasons),
        "suggestion": verdict.suggestion,
        "suggestion_target": verdict.suggestion_target,
    }
    emit(document, as_json=json, text=_verdict_text(verdict, where))
    if not verdict.valid:
        raise typer.Exit(2)


def _verdict_text(verdict: Verdict, where: str) -> str:
    if verdict.plan:
        steps = [f"{number}. {_step_line(step)}" for number, step in enumerate(verdict.plan.steps, 1)] or [
            "No steps: the original, unchanged."
        ]
        return "\n".join([f"Valid on {where}:", *steps, *verdict.plan.notes])
    text = "\n".join(f"{reason.message} [{reason.rule}: {reason.source}]" for reason in verdict.reasons)
    if verdict.suggestion is None:
        return text
    on = f" (on {verdict.suggestion_target})" if verdict.suggestion_target else ""
    return f"{text}\n\nClosest valid recipe{on}:\n{recipe_files.write_text(verdict.suggestion)}"


def _step_line(step: PlannedStep) -> str:
    return f"{step.title}, by {step.engine}" + (f", served by {step.kernel}" if step.kernel else "")


@app.command("estimate")
def estimate_recipe(
    recipe: File,
    model: Model = "starter",
    target: Target = "local",
    input_tokens: goals.InputTokens = 512,
    output_tokens: goals.OutputTokens = 128,
    concurrency: goals.Concurrency = None,
    rate: goals.Rate = None,
    acceptance: Annotated[float | None, number_option("Acceptance rate of draft tokens, 0 to 1.", 0, 1)] = None,
    price_per_hour: Annotated[
        float | None, number_option("Price in USD per hour, for a machine without a published price.", 0)
    ] = None,
    goal: goals.GoalName = "cost",
    max_ttft_ms: goals.MaxTtft = None,
    max_tpot_ms: goals.MaxTpot = None,
    min_tokens_per_s: goals.MinRate = None,
    min_context: goals.MinContext = None,
    json: Json = False,
) -> None:
    """Estimate memory, disk, duration, cost, latency and throughput, as ranges with their formulas."""
    workspace = service.open_workspace()
    # 1. Resolve the recipe and the load.
    card, chosen = models.resolve_facts(workspace, model), recipe_files.read_file(recipe)
    calibration.find_file(chosen)
    load = goals.read_load(input_tokens, output_tokens, concurrency, rate)
    # 2. Estimate a named target.
    if target != "auto":
        case = cases.resolve(workspace, card, chosen, target, probe=True)
        estimate = estimates.estimate_one(workspace, case, load, acceptance=acceptance, price_per_hour=price_per_hour)
        emit(estimate, as_json=json, text=estimate_text(estimate))
        return
    # 3. Let `auto` choose an instance.
    limits = {"max_ttft_ms": max_ttft_ms, "max_tpot_ms": max_tpot_ms, "min_output_tokens_per_s": min_tokens_per_s}
    choice = auto_target.choose_target(
        workspace, card, chosen, goals.read_goal(wanted=goal, min_context=min_context, **limits), load
    )
    winner = choice.winner.model_dump(mode="json") if choice.winner else {}
    emit(winner | {"why": choice.why, "losers": choice.losers}, as_json=json, text=choice_text(choice))
    if choice.winner is None:
        raise typer.Exit(2)
