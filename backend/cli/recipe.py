"""`whetstone recipe ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend import service
from backend.cli.optimize import Json
from backend.cli.output import emit
from backend.domain import estimate
from backend.service import models, recipes

app = typer.Typer(no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A recipe file, or the name of a bundled recipe.")]
Model = Annotated[str, typer.Option(help="A model id or a folder.")]
Target = Annotated[str, typer.Option(help="Where it is to run.")]


@app.command("list")
def list_recipes(json: Json = False) -> None:
    """The bundled recipes, as YAML."""
    found = {name: recipes.read_file(Path(name)) for name in recipes.bundled_names()}
    emit(found, as_json=json, text="\n".join(f"# {name}\n{recipes.write_text(chosen)}" for name, chosen in found.items()))


@app.command()
def check(recipe: File, model: Model = "starter", target: Target = "local", json: Json = False) -> None:
    """The plan, or every reason why not with the nearest valid recipe; exit 0 when valid, 2 when not."""
    workspace = service.open_workspace()
    verdict, _ = recipes.check(workspace, models.resolve(workspace, model), recipes.read_file(recipe), target)
    document = {
        "valid": verdict.valid,
        "plan": list(verdict.plan.steps) if verdict.plan else [],
        "reasons": list(verdict.reasons),
        "suggestion": verdict.suggestion,
    }
    if verdict.plan:
        text = "\n".join([f"{i}. {step.title}" for i, step in enumerate(verdict.plan.steps, 1)] + list(verdict.plan.notes))
    else:
        text = "\n".join(f"{reason.message} [{reason.rule}: {reason.source}]" for reason in verdict.reasons)
        if verdict.suggestion:
            text += f"\n\nNearest valid recipe:\n{recipes.write_text(verdict.suggestion)}"
    emit(document, as_json=json, text=text or "No steps: the original, unchanged.")
    if not verdict.valid:
        raise typer.Exit(2)


@app.command("estimate")
def estimate_recipe(recipe: File, model: Model = "starter", json: Json = False) -> None:
    """What the optimize job needs: disk and memory, with the formula of each."""
    workspace = service.open_workspace()
    card, chosen = models.resolve(workspace, model), recipes.read_file(recipe)
    _, draft = recipes.check(workspace, card, chosen)
    found = estimate.need(card, chosen, draft)
    document = found.model_dump() | {"weights_bytes_original": card.weights_bytes, "kv_bytes_per_token": card.kv_bytes_per_token}
    lines = [f"{name:24} {value / 1e6:,.1f} MB" for name, value in document.items() if name.endswith("_bytes")]
    emit(document, as_json=json, text="\n".join(lines + [f"{k}: {v}" for k, v in found.formulas.items()]))
