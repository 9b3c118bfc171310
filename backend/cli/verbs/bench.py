"""`whetstone bench`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from backend import service
from backend.cli.flag_names import error_text
from backend.cli.options import load_options
from backend.cli.output import Json, emit, say
from backend.cli.text.levels import levels_table
from backend.cli.verbs import bench_import
from backend.domain.evaluation.document import EvaluateOptions
from backend.present.words import workload_reading as workload_words
from backend.service.evaluations import bench
from backend.service.evaluations.workloads import PreparedLoad


@load_options.with_load_options(
    without=(
        "quality",
        "quality_text",
        "quality_prompts",
        "lossless",
        "tasks",
        "task_limit",
        "interleave",
        "starts_apart",
        "same_within",
        "until_decided",
        "max_blocks",
    ),
    repeats=1,
    quality=False,
)
def bench_command(
    url: Annotated[
        str, typer.Argument(help="The endpoint, such as http://127.0.0.1:8000/v1 or sagemaker:NAME@REGION.")
    ],
    model: Annotated[str | None, typer.Option(help="Model name to send. Default: the endpoint's first model.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Model whose tokenizer measures generated prompts: an id or a folder.")
    ] = None,
    *,
    chosen: EvaluateOptions,
    json: Json = False,
) -> None:
    """Run the load generator alone against any OpenAI-compatible endpoint.

    If the server stops early, finished levels are still printed. Exit 1 then, and if every request failed. `whetstone
    bench import FILE...` imports a result of GuideLLM or vLLM's bench, `bench imported` lists imported results, `bench
    forget ID` removes one.
    """
    workspace = service.open_workspace()
    # 1. Run the load.
    outcome = bench.run_bench(
        workspace, url, model, chosen, tokenizer=tokenizer, on_prepared=partial(_say_workload, chosen)
    )
    # 2. Print the levels that were finished.
    if outcome.levels or outcome.failure is None:
        emit(outcome.levels, as_json=json, text=levels_table([(url, level) for level in outcome.levels]))
    # 3. Say why it ended early.
    if outcome.failure is not None:
        note = f" {len(outcome.levels)} level(s) were finished before that." if outcome.answered else ""
        say(f"whetstone: {error_text(outcome.failure)}{note}")
        raise typer.Exit(outcome.failure.exit_code)


def _say_workload(options: EvaluateOptions, prepared: PreparedLoad) -> None:
    for words in workload_words.workload_sentences(options, prepared.chosen, prepared.prompts, prepared.reading):
        say(words)


app = typer.Typer(cls=bench_import.UrlOrVerb)
app.command(bench_import.RUN)(bench_command)
app.command("import")(bench_import.import_command)
app.command("imported")(bench_import.imported_command)
app.command("forget")(bench_import.forget_command)
