"""`whetstone presets ...`: where others start. Every figure says which kind it is: estimated, published or measured."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, get_args

import typer

from backend import service
from backend.cli.options import goals
from backend.cli.output import Json, emit, say_left_out, table
from backend.domain.errors import ImpossibleStack, InvalidPreset
from backend.domain.figures import figure
from backend.domain.planner.planned_load import PlannedLoad
from backend.domain.planner.presets import GOALS, Origin
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe import step_words
from backend.domain.recipe.recipe import Recipe
from backend.domain.rules.plan import Verdict
from backend.present import load_words
from backend.present.preset_figures import Measurement
from backend.service.plans import recipe_files
from backend.service.presets import preset_text, presets
from backend.service.presets.presets import AppliedPreset, PresetFilter, PresetView

app = typer.Typer(no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="The id of a preset, such as llama-3-70b-instruct/lower-cost.")]
Output = Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace another preset of that id, unless it comes with Whetstone.")
]
MOST = 1000
USUAL = PlannedLoad().expected
"""The load that the pages begin with."""


@app.command("list")
def list_presets(
    model: Annotated[str | None, typer.Option(help="Only those of this model: an id, a hub id or a folder.")] = None,
    goal: Annotated[str | None, typer.Option(help=f"Only those for this goal: {', '.join(GOALS)}.")] = None,
    origin: Annotated[str | None, typer.Option(help="Only those of this origin: bundled, imported or own.")] = None,
    target: Annotated[str | None, typer.Option(help="Only those for this target, such as ml.g5.12xlarge.")] = None,
    search: Annotated[str, typer.Option(help="Words to search for in the id, the model and the target.")] = "",
    input_tokens: goals.InputTokens = USUAL.input_tokens,
    output_tokens: goals.OutputTokens = USUAL.output_tokens,
    concurrency: goals.Concurrency = None,
    rate: goals.Rate = None,
    json: Json = False,
) -> None:
    """Presets with what is estimated, published and measured of them."""
    _require_one_of("goal", goal, list(GOALS))
    _require_one_of("origin", origin, list(get_args(Origin)))
    workspace = service.open_workspace()
    chosen = PresetFilter(model=model, goal=goal, origin=origin, target=target, words=search)
    load = _read_load(input_tokens, output_tokens, concurrency, rate)
    preset_views = presets.views(workspace, presets.listing(workspace, chosen, limit=MOST), load)
    say_left_out(workspace, "preset")
    emit(
        [_document(view) for view in preset_views],
        as_json=json,
        text=f"{table(HEADER, [_row(view, load) for view in preset_views])}\nEstimates are for {load.text}.",
    )


def _read_load(input_tokens: int, output_tokens: int, concurrency: int | None, rate: float | None) -> ExpectedLoad:
    """Return the load of the figures: without a rate, the concurrency that the pages begin with."""
    streams = USUAL.concurrency if concurrency is None and rate is None else concurrency
    return goals.read_load(input_tokens, output_tokens, streams, rate)


def _require_one_of(option: str, value: str | None, known: list[str]) -> None:
    if value is not None and value not in known:
        raise InvalidPreset(f"--{option} is wrong: it is one of {', '.join(known)}.")


HEADER = ("preset", "recipe", "target", "estimated tokens/s", "USD per million", "published", "measured tokens/s")


def _row(view: PresetView, load: ExpectedLoad) -> tuple[str | None, ...]:
    preset, estimate = view.preset, view.estimated.at(load)
    published = "; ".join(claim.figures for claim in preset.published) or None
    measured = _measured_text(view.measured[0]) if view.measured else None
    figures = (estimate.output_tokens_per_s, estimate.price_per_million_output) if estimate else (None, None)
    texts = (_range_text(ends) if ends else None for ends in figures)
    return preset.id, preset.recipe.name, load_words.instances(preset.target, estimate), *texts, published, measured


def _measured_text(measured: Measurement) -> str:
    best = measured.best
    return f"{figure(best.output_tokens_per_s)} at {best.concurrency}" if best else "no sound level with tokens/s"


def _range_text(ends: tuple[float, float]) -> str:
    return f"{figure(ends[0])} to {figure(ends[1])}"


@app.command()
def show(
    preset: Id,
    input_tokens: goals.InputTokens = USUAL.input_tokens,
    output_tokens: goals.OutputTokens = USUAL.output_tokens,
    concurrency: goals.Concurrency = None,
    rate: goals.Rate = None,
    json: Json = False,
) -> None:
    """One preset: its recipe, and every figure with how it is known."""
    load = _read_load(input_tokens, output_tokens, concurrency, rate)
    view = presets.show(service.open_workspace(), preset, load)
    emit(_document(view), as_json=json, text=_text(view))


def _document(view: PresetView) -> dict[str, Any]:
    document = view.model_dump(mode="json")
    own: dict[str, Any] = document.pop("preset")
    claims = own.pop("published")
    document["published"] = [
        {**claim, "today": today} for claim, today in zip(claims, document.pop("today"), strict=True)
    ]
    return own | document


def _text(view: PresetView) -> str:
    preset = view.preset
    head = [f"{preset.id} ({view.origin}), for: {GOALS[preset.goal].meaning}", preset.summary]
    facts = [f"model   {preset.model}", f"target  {preset.target}", "", recipe_files.write_text(preset.recipe)]
    parts = [
        "Estimated by formula:",
        *_estimated_lines(view),
        "",
        "Published by others:",
        *_published_lines(view),
        "",
        "Measured:",
    ]
    return "\n".join([*head, *facts, *parts, *_measured_lines(view)])


def _estimated_lines(view: PresetView) -> list[str]:
    if not view.estimated.levels:
        return [f"  nothing: {view.estimated.why_not}"]
    rows = []
    for level in view.estimated.levels:
        ends = (level.tpot_ms, level.output_tokens_per_s, level.price_per_million_output)
        rows.append((level.load.demand, *(_range_text(end) if end else "unknown" for end in ends)))
    header = ("load", "ms per output token", "output tokens/s", "USD per million output tokens")
    load = view.estimated.levels[0].load
    return [indent(f"{load.input_tokens} tokens in, {load.output_tokens} out\n{table(header, rows)}", "  ")]


def _published_lines(view: PresetView) -> list[str]:
    lines = []
    for claim, today in zip(view.preset.published, view.today, strict=True):
        lines += [f'  {claim.metric} {claim.figures}: "{claim.statement}"', f"    {claim.conditions}"]
        lines += [f"    {today}"] if today else []
        lines += [f"    {claim.source}", f"    {claim.url}"]
    return lines or ["  nothing"]


def _measured_lines(view: PresetView) -> list[str]:
    lines = []
    for measured in view.measured:
        lines.append(f"  {measured.evaluation}: {measured.provenance}")
        rows = [(level.concurrency, level.tpot_ms_p50, level.output_tokens_per_s) for level in measured.levels]
        lines.append(indent(table(("load", "ms per output token", "output tokens/s"), rows), "    "))
        lines += [f"    {sentence}" for sentence in measured.verdicts]
    return lines or ["  nothing: `whetstone evaluate` measures what `whetstone optimize` made with this recipe"]


@app.command()
def apply(
    preset: Id,
    model: Annotated[str | None, typer.Option(help="Another model than the preset's own.")] = None,
    target: Annotated[str | None, typer.Option(help="Another target than the preset's own.")] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """The recipe and target to use, checked; exit 2 with the reasons and the nearest valid recipe where it is not valid
    there."""
    # 1. Check the recipe on the model and target.
    applied = presets.apply(service.open_workspace(), preset, model=model, target=target)
    case = applied.case
    if not case.verdict.valid:
        if json:
            emit(_applied_document(applied), as_json=True, text="")
        raise ImpossibleStack(_refusal_text(case.verdict))
    # 2. Write the recipe, or print it with what it is for.
    text = recipe_files.write_text(case.recipe)
    if output is not None:
        _write(output, text)
    commented = f"# {applied.preset} for {applied.source}, target {case.target_name}\n{text}"
    written = f"Written to {output}: use it with --model {applied.source} --target {case.target_name}"
    emit(_applied_document(applied), as_json=json, text=written if output else commented)


def _applied_document(applied: AppliedPreset) -> dict[str, Any]:
    case, verdict = applied.case, applied.case.verdict
    return {
        "preset": applied.preset,
        "model": applied.source,
        "target": case.target_name,
        "valid": verdict.valid,
        "recipe": case.recipe,
        "notes": list(verdict.plan.notes) if verdict.plan else [],
        "reasons": list(verdict.reasons),
        "suggestion": verdict.suggestion,
        "suggestion_target": verdict.suggestion_target,
    }


def _refusal_text(verdict: Verdict) -> str:
    reasons = " ".join(reason.message for reason in verdict.reasons)
    if verdict.suggestion is None:
        return reasons
    on = f" on {verdict.suggestion_target}" if verdict.suggestion_target else ""
    return f"{reasons} The nearest valid recipe{on}: {_recipe_line(verdict.suggestion)}."


def _recipe_line(recipe: Recipe) -> str:
    """`quantize w8a8, compile; tensor_parallel 1`."""
    steps = step_words.steps_line(recipe, separator=", ", empty="no steps")
    return f"{steps}; tensor parallel degree {recipe.serving.tensor_parallel}"


@app.command()
def save(
    preset: Id,
    recipe: Annotated[Path, typer.Option(help="A recipe file, or the name of a bundled recipe.")],
    model: Annotated[str, typer.Option(help="A model id or a folder.")],
    goal: Annotated[str, typer.Option(help=f"One of {', '.join(GOALS)}.")],
    target: Annotated[str, typer.Option(help="Where it is to run.")] = "local",
    summary: Annotated[str, typer.Option(help="One sentence: what it is good for.")] = "",
    replace: Replace = False,
    json: Json = False,
) -> None:
    """Keep a recipe of one's own as a preset."""
    chosen = recipe_files.read_file(recipe)
    known_preset = presets.save(
        service.open_workspace(),
        preset,
        model=model,
        goal=goal,
        recipe=chosen,
        target=target,
        summary=summary,
        replace=replace,
    )
    emit(known_preset, as_json=json, text=f"{known_preset.preset.id} is kept.")


@app.command()
def remove(preset: Id, json: Json = False) -> None:
    """Forget a preset of one's own or an imported one."""
    presets.remove(service.open_workspace(), preset)
    emit({"removed": preset}, as_json=json, text=f"{preset} is forgotten.")


@app.command()
def export(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of presets; all of them where none is given.")] = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Presets as one YAML file, which `presets import` reads. Figures that are estimated or measured are not part of
    it."""
    workspace = service.open_workspace()
    chosen = ids or [known_preset.preset.id for known_preset in presets.listing(workspace, limit=MOST)]
    text = presets.export(workspace, chosen)
    if output is not None:
        _write(output, text)
    document = {"presets": chosen, "file": str(output) if output else None, "yaml": None if output else text}
    emit(document, as_json=json, text=f"{len(chosen)} presets are in {output}" if output else text.rstrip("\n"))


@app.command("import")
def import_presets(
    file: Annotated[Path, typer.Argument(help="A YAML file that `presets export` wrote.")],
    replace: Replace = False,
    json: Json = False,
) -> None:
    """Take presets from a file: all of them, or none where one is wrong."""
    outcomes = presets.put(service.open_workspace(), preset_text.read_file(file), replace=replace)
    document = [{"preset": name, "outcome": outcome} for name, outcome in outcomes]
    emit(document, as_json=json, text="\n".join(f"{name}: {outcome}" for name, outcome in outcomes))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidPreset(f"{path} cannot be written ({error.strerror}): give another file.") from None
