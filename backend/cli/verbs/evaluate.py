"""`whetstone evaluate`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from backend import service
from backend.cli.options import load_options
from backend.cli.options.job_options import JobOptions, with_job_options
from backend.cli.output import Json, emit, say, table
from backend.cli.submit_and_wait import Wait, submit_and_wait
from backend.cli.text.levels import levels_table
from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Comparison, EvaluateOptions, Evaluation, Level, VariantResult
from backend.domain.figures import share
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.recipe.serving_engines import ENGINES
from backend.present.speculation import words
from backend.present.tables import tasks as task_tables
from backend.present.words import engines, evidence, headline, quality_loss, repeat_counts
from backend.present.words import workload_reading as workload_words
from backend.present.words.measurements import agreed_shares
from backend.present.words.verdicts import describe_comparison, describe_task_score, rows_by_level
from backend.service.evaluations import continuation, evaluations, tasks, workloads
from backend.service.jobs import jobs
from backend.service.serving import local_endpoints

AGREED = ("greedy match", "exact match", "token F1")


@with_job_options(timeout=False)
@load_options.with_load_options()
def evaluate(
    chosen: EvaluateOptions,
    job_options: JobOptions,
    variants: Annotated[
        list[str] | None,
        typer.Argument(
            help="Model ids, folders, artifact ids, URLs or sagemaker:NAME@REGION; the first is the baseline."
        ),
    ] = None,
    continues: Annotated[
        str | None,
        typer.Option(
            "--continue", metavar="EVALUATION", help="Add blocks to an evaluation: same variants and load, new prompts."
        ),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="With --continue: number of blocks. Default: as many as the verdict needs.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit 1 if this holds, such as `ttft_p95 > 300ms at 4` (streams; for a rate `at 4/s`). Repeatable."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(ENGINES)} or auto, for all variants served here but those written SOURCE@engine=NAME."
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Allow an artifact whose quality is below the floor.")
    ] = False,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Compare variants with the first one: latency, throughput, price and quality, with a verdict for each level."""
    workspace = service.open_workspace()
    # 1. Prepare a new evaluation, or more blocks of an earlier one.
    if continues is not None:
        prepared = _continue_evaluation(
            workspace, continues, blocks, bool(variants or engine) or chosen != evaluations.read_options()
        )
    elif variants and blocks is None:
        tasks.get_missing(workspace, chosen, say)
        prepared = evaluations.prepare(workspace, variants, chosen, engine=engine, anyway=anyway)
    else:
        raise RequestError("Give at least one variant, or --continue EVALUATION with --blocks.")
    # 2. Say which workload is used, and which engines were chosen.
    if prepared.continues is None:
        for sentence in workload_words.workload_sentences(
            chosen, prepared.options, *workloads.describe_reading(prepared.options, prepared.variants)
        ):
            say(sentence)
    for sentence in engines.choice_sentences(prepared.variants):
        say(sentence)
    for sentence in engines.sharing_sentences(local_endpoints.list_loaded(workspace)):
        say(sentence)
    # 3. Read the quality gates before anything is submitted.
    conditions = evaluations.read_gates(fail_if or [], prepared.options, waits=wait)
    # 4. Submit, wait, and print the result.
    send = continuation.submit if prepared.continues else evaluations.submit
    submit = partial(
        send, workspace, prepared, submission=jobs.submission_key(workspace, job_options.key), terms=job_options.terms
    )
    ended = submit_and_wait(workspace, submit, wait=wait, as_json=json)
    shown = evaluations.show(workspace, str(ended.result["evaluation"]))
    emit(shown.document, as_json=json, text=f"{summary_text(shown.document)}\n\nReport: {ended.result['report']}")
    # 5. Exit 1 if a gate fails.
    evaluations.check_gates(shown.document, conditions)


def _continue_evaluation(
    workspace: service.Workspace, evaluation: str, blocks: int | None, others: bool
) -> EvaluateSpec:
    """Raises RequestError."""
    if others:
        raise RequestError("--continue uses the evaluation's variants and load: leave out all options but --blocks.")
    if blocks is None:
        blocks = headline.more_blocks(headline.throughput_verdicts(evaluations.show(workspace, evaluation).document))
    if blocks is None:
        raise RequestError(f"The number of blocks that {evaluation} needs is unknown: give --blocks.")
    return continuation.prepare(workspace, evaluation, blocks)


def summary_text(document: Evaluation) -> str:
    """Return the levels as a table, then one line for each verdict, then quality."""
    rows = [(result.name, _level_row(result, level)) for result in document.variants for level in result.levels]
    engine_lines = engines.engine_sentences(document)
    lines = [
        levels_table(rows),
        "",
        *engine_lines,
        *([""] if engine_lines else []),
        *_findings_text(document),
        *_verdict_lines(document),
        *_speculation_lines(document),
        "Quality:",
        *_quality_lines(document),
        *_task_lines(document),
    ]
    return "\n".join(lines + [f"warning: {warning}" for warning in document.warnings])


def _findings_text(document: Evaluation) -> list[str]:
    """Return findings on how the variants were served, those that fail first."""
    wrong = [f"{evidence.TITLE}: {sentence}" for sentence in evidence.off_sentences(document)]
    line = evidence.line(document)
    return [*wrong, line, ""] if line else []


def _speculation_lines(document: Evaluation) -> list[str]:
    """Return the acceptance at each load, and whether speculation changed answers."""
    rows = words.rows(document)
    accepted = [table(list(rows[0]), [list(row.values()) for row in rows])] if rows else []
    sentences = [f"  {sentence}" for sentence in words.lossless_sentences(document)]
    return ["Speculation:", *accepted, *sentences, ""] if accepted or sentences else []


def _verdict_lines(document: Evaluation) -> list[str]:
    """Return one line for each comparison, that of the figure that decides before the others of its level.

    None in a sweep, where each variant has its own levels.
    """
    levels = rows_by_level(document).values()
    lines = [_verdict_line(row) for rows in levels for row in sorted(rows, key=lambda row: row.secondary)]
    repeats = f"Repeats: {repeat_counts.measured_repeats(document)}. Tests: {repeat_counts.describe_tests(document)}."
    return [f"Against {document.variants[0].name}:", *lines, repeats, ""] if lines else []


def _verdict_line(row: Comparison) -> str:
    """`  at 4 streams, ttft_ms_p50: w8a8 is faster by ...`, at the load as it was asked for."""
    without = row.outcome == "undecided" and row.ratio is None
    metric = f"{row.metric} (secondary)" if row.secondary else row.metric
    return f"  at {row.load.words}, {metric}: {row.variant}{': ' if without else ' is '}{describe_comparison(row)}"


def _level_row(result: VariantResult, level: Level) -> dict[str, Any]:
    """Return the level as in the JSON; a missing acceptance rate is replaced by its reason."""
    shown = level.model_dump()
    return shown | ({"acceptance_rate": result.no_acceptance} if level.acceptance_rate is None else {})


def _quality_lines(document: Evaluation) -> list[str]:
    """Return the quality lines. The baseline's agreement is with a second run of itself, which measures the noise."""
    rows = []
    for result in document.variants:
        # One row for each variant.
        quality = result.quality
        shares = agreed_shares(quality) if quality else {}
        agreed = [share(*shares[name]) if name in shares else None for name in AGREED]
        answers = f"{quality.answers} of {quality.answers_asked}" if quality and quality.answers is not None else None
        top = quality.same_top if quality else None
        scores = (quality and quality.perplexity, quality and quality.kl_mean, None if top is None else f"{top:.1%}")
        rows.append((result.name, *scores, *agreed, answers, result.ready_seconds))
    # Then one sentence for each variant that lost quality.
    lines = []
    for result in document.variants[1:]:
        loss_text = quality_loss.words(result.quality)
        if loss_text:
            lines.append(f"{result.name}: {loss_text}")
    lines += engines.cross_engine_sentences(document)
    return [table(("variant", "perplexity", "mean KL", "same top", *AGREED, "answers", "ready s"), rows), *lines]


def _task_lines(document: Evaluation) -> list[str]:
    header = ("variant", "task", "metric", "guessing", "value", "stderr", "samples", "against the first")
    rows = [
        (
            *(result.name, score.task, score.metric, score.floor, score.value, score.stderr, score.samples),
            describe_task_score(score),
        )
        for _, result, score in task_tables.scores_by_task(document)
    ]
    sentences = [*task_tables.guessing_sentences(document), *task_tables.origins(document)]
    return ["", "Tasks:", table(header, rows), *sentences] if rows else []
