"""`whetstone optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.options import auto_bits as bits
from backend.cli.options import goals
from backend.cli.options.job_options import JobOptions, with_job_options
from backend.cli.output import Json, emit, next_command, say
from backend.cli.submit_and_wait import Wait, outcome_document, submit_and_wait, wait_for_end
from backend.cli.text.estimates import compilation_text, preview_text
from backend.cli.verbs import sagemaker_optimize
from backend.domain.needs.structure import removal_sentence
from backend.domain.recipe.recovery import gain_sentence
from backend.present.words import quality_loss
from backend.service.evaluations import follow_up
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models, variants
from backend.service.plans import cases, neuron_compilation, optimize
from backend.service.plans.sagemaker_jobs import is_sagemaker as managed_target


@with_job_options("cores", "memory_bytes")
def optimize_command(
    job_options: JobOptions,
    model: Annotated[str, typer.Argument(help="A model id such as `starter`, or a folder.")],
    recipe: Annotated[Path | None, typer.Option(help="A recipe file, or the name of a bundled recipe.")] = None,
    auto_bits: bits.AutoBits = None,
    target: Annotated[
        str,
        typer.Option(
            help="local, local:cpu or local:gpu0: run and serve here. An instance such as ml.g5.12xlarge, or auto "
            "(the cheapest that fits and meets the goal): run here, serve there. sagemaker:ml.g5.12xlarge: "
            "AWS's toolkit runs the job. neuron:ml.inf2.48xlarge: compile here for that instance."
        ),
    ] = "local",
    input_tokens: goals.InputTokens = 512,
    output_tokens: goals.OutputTokens = 128,
    concurrency: goals.Concurrency = None,
    rate: goals.Rate = None,
    goal: goals.GoalName = "cost",
    max_ttft_ms: goals.MaxTtft = None,
    max_tpot_ms: goals.MaxTpot = None,
    min_tokens_per_s: goals.MinRate = None,
    min_context: goals.MinContext = None,
    aws: sagemaker_optimize.AwsSettingsOption = None,
    written_as: sagemaker_optimize.PreviewFormat = None,
    seed: Annotated[int, typer.Option(help="Seed of the calibration sample.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it needs, without starting a job.")
    ] = False,
    then_evaluate: Annotated[
        bool,
        typer.Option("--then-evaluate", help="Evaluate the result against the original in a second job."),
    ] = False,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Optimize a model with a recipe. The job makes a verified artifact."""
    # 1. Resolve what was asked: recipe, goal, load and target make one case.
    sagemaker_optimize.check_options(target, aws or [], written_as, then_evaluate=then_evaluate)
    workspace, chosen = service.open_workspace(), bits.choose_recipe(recipe, auto_bits)
    limits = {"max_ttft_ms": max_ttft_ms, "max_tpot_ms": max_tpot_ms, "min_output_tokens_per_s": min_tokens_per_s}
    chosen_goal = goals.read_goal(wanted=goal, min_context=min_context, **limits)
    load = goals.read_load(input_tokens, output_tokens, concurrency, rate)
    case = cases.resolve(workspace, models.resolve_facts(workspace, model), chosen, target, chosen_goal, load)
    # 2. Hand a `sagemaker:` target to AWS's toolkit.
    if managed_target(target):
        sagemaker_optimize.submit_to_sagemaker(
            workspace, case, aws or [], job_options, written_as=written_as, dry_run=dry_run, wait=wait, as_json=json
        )
        return
    # 3. Only show the plan.
    if dry_run and case.facts.place == "neuron":
        compilation = neuron_compilation.preview(workspace, case)
        emit(compilation, as_json=json, text=compilation_text(compilation))
        return
    if dry_run:
        preview = optimize.preview(workspace, case, seed=seed)
        emit(preview, as_json=json, text=preview_text(f"{model} with {chosen.name}", preview))
        return
    # 4. Prepare the job, and the evaluation that follows it.
    prepare = neuron_compilation.prepare if case.facts.place == "neuron" else optimize.prepare
    prepared = prepare(workspace, case, seed=seed)
    then = follow_up.make_follower(follow_up.prepare(workspace, prepared.spec)) if then_evaluate else None
    key = jobs.submission_key(workspace, job_options.key)

    def submit() -> JobView:
        job = optimize.submit(workspace, prepared, submission=key, terms=job_options.terms, then=then)
        if prepared.spec.deployment is not None:
            say(optimize.where_text(prepared.spec.model, prepared.spec.deployment, chosen))
        return job

    # 5. Submit, and wait if requested.
    ended = submit_and_wait(workspace, submit, wait=wait, as_json=json)
    # 6. Print the outcome, after the follow-up evaluation if there is one.
    document = outcome_document(
        ended,
        "artifact",
        "path",
        "seconds",
        "peak_rss_bytes",
        "quality",
        "bytes_before",
        "bytes_after",
        "average_bits",
        "recovery",
        *(name for name in ("structure", "quantized_recovery") if name in ended.result),
    )
    text = _text(model, document, variants.why_unserved(workspace, str(document["artifact"])))
    second = jobs.find_follower(workspace, ended.id) if then is not None else None
    if second is not None:
        document["evaluation"] = wait_for_end(workspace, second).result["evaluation"]
        text += f"\n{next_command('report', document['evaluation'])}"
    emit(document, as_json=json, text=text)


def _text(model: str, document: dict[str, Any], unserved: str | None) -> str:
    # 1. Size and time.
    quality = document["quality"] or {}
    before, after = document["bytes_before"] / 1e6, document["bytes_after"] / 1e6
    lines = [
        f"{document['artifact']} is ready in {document['path']}",
        f"  weights {before:.1f} -> {after:.1f} MB in {document['seconds']:.0f} s",
    ]
    if document["average_bits"] is not None:
        lines.append(f"  {document['average_bits']:.2f} bits per weight of the quantized linears, scales included")
    if document.get("structure"):
        lines.append(f"  {removal_sentence(document['structure'])}")
    # 2. Quality, and what recovery gained.
    if quality.get("kl_mean") is not None:
        change = f"{quality['perplexity_before']:.2f} -> {quality['perplexity_after']:.2f}"
        lines.append(f"  perplexity {change}, mean KL divergence {quality['kl_mean']:.5f}")
        lines.append(f"  {quality_loss.manifest_words(quality)}, scored on the held-out text `{quality.get('text')}`")
    if ruined := quality.get("below_floor"):
        lines.append(f"  WARNING: {ruined}")
    for record in filter(None, (document["recovery"], document.get("quantized_recovery"))):
        lines.append(f"  {gain_sentence(record['quality'])}")
    # 3. How to go on.
    way_on = (
        f"It cannot be served here: {unserved}." if unserved else next_command("evaluate", model, document["artifact"])
    )
    return "\n".join([*lines, way_on])
