"""`whetstone evaluate` and `whetstone bench`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backend import service
from backend.cli.optimize import Json, queued
from backend.cli.output import emit, table
from backend.cli.run import finish
from backend.domain.evaluation import EvaluateOptions, Evaluation
from backend.service import bench, evaluations

Concurrency = Annotated[str, typer.Option(help="Levels, comma-separated, such as 1,4,16.")]
Workload = Annotated[str, typer.Option(help="A bundled workload's name, or a JSONL file.")]
Requests = Annotated[int | None, typer.Option(help="Requests a level and repeat, warm-up not counted.")]
Seconds = Annotated[float | None, typer.Option(help="Or: seconds a level and repeat.")]
Repeats = Annotated[int, typer.Option(help="Blocks; five or more give a verdict.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature.")]
Price = Annotated[float | None, typer.Option(help="Hourly price of the machine; without it prices stay empty.")]
Discount = Annotated[float, typer.Option(help="Share taken off the hourly price, 0 to 1.")]


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)
    app.command("bench")(bench_command)


def evaluate(
    variants: Annotated[list[str], typer.Argument(help="Model ids, folders, artifact ids or URLs; the first is the baseline.")],
    concurrency: Concurrency = "1,4",
    workload: Workload = "starter-code",
    requests: Requests = None,
    seconds: Seconds = None,
    repeats: Repeats = 5,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.0,
    quality: Annotated[bool, typer.Option(help="Perplexity, KL divergence and greedy match beside the speed.")] = True,
    price_per_hour: Price = None,
    discount: Discount = 0.0,
    interleave: Annotated[str, typer.Option(help="auto, resident (all servers up) or restart.")] = "auto",
    wait: Annotated[bool, typer.Option("--wait/--detach", help="Wait for the end, or leave it to the supervisor.")] = True,
    json: Json = False,
) -> None:
    """Measure variants against the first one: latency, throughput, price and quality, with a verdict a level."""
    workspace = service.open_workspace()
    chosen = evaluations.options(
        concurrency=_levels(concurrency), workload=workload, requests=requests, seconds=seconds, repeats=repeats,
        max_tokens=max_tokens, temperature=temperature, quality=quality, price_per_hour=price_per_hour, discount=discount,
        interleave=interleave,
    )  # fmt: skip
    job = evaluations.submit(workspace, evaluations.prepare(workspace, variants, chosen))
    if not wait:
        queued(workspace, job, as_json=json)
        return
    ended = finish(workspace, job)
    shown = evaluations.show(workspace, str(ended.result["evaluation"]))
    emit(shown.document, as_json=json, text=f"{summary(shown.document)}\n\nReport: {ended.result['report']}")


def bench_command(
    url: Annotated[str, typer.Argument(help="The endpoint, such as http://127.0.0.1:8000/v1.")],
    model: Annotated[str | None, typer.Option(help="The model name to send; the endpoint's first one by default.")] = None,
    concurrency: Concurrency = "1,4",
    workload: Workload = "starter-code",
    requests: Requests = None,
    seconds: Seconds = None,
    repeats: Repeats = 1,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.0,
    price_per_hour: Price = None,
    discount: Discount = 0.0,
    bearer_env: Annotated[str | None, typer.Option(help="Environment variable that holds the bearer token.")] = None,
    json: Json = False,
) -> None:
    """Run the load generator alone against any OpenAI-compatible endpoint."""
    workspace = service.open_workspace()
    chosen = evaluations.options(
        concurrency=_levels(concurrency), workload=workload, requests=requests, seconds=seconds, repeats=repeats,
        max_tokens=max_tokens, temperature=temperature, price_per_hour=price_per_hour, discount=discount, quality=False,
    )  # fmt: skip
    levels = bench.run(workspace, url, model, chosen, bearer_env=bearer_env)
    emit(levels, as_json=json, text=_levels_table([(url, level) for level in levels]))


def _levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise evaluations.InvalidOptions(f"--concurrency is wrong: `{text}` is not a list such as 1,4,16.") from None


def summary(document: Evaluation) -> str:
    """The levels as a table, then a line a verdict, then quality."""
    rows = [(result.name, level.model_dump()) for result in document.variants for level in result.levels]
    verdicts = [
        f"  at {c.concurrency} stream(s), {c.metric}: {c.variant} is {c.verdict}" if not c.verdict.startswith("no ")
        else f"  at {c.concurrency} stream(s), {c.metric}: {c.variant}: {c.verdict}"
        for c in document.comparison
    ]  # fmt: skip
    lines = [_levels_table(rows), "", f"Against {document.variants[0].name}:", *verdicts, "", "Quality:", *_quality(document)]
    return "\n".join(lines + [f"warning: {warning}" for warning in document.warnings])


def _quality(document: Evaluation) -> list[str]:
    header = ("variant", "perplexity", "mean KL", "greedy match", "ready s")
    rows = []
    for result in document.variants:
        q = result.quality
        figures = (q.perplexity, q.kl_mean, q.greedy_match) if q else (None, None, None)
        rows.append((result.name, *figures, result.ready_seconds))
    return [table(header, rows)]


def _levels_table(levels: list[tuple[str, dict[str, Any]]]) -> str:
    header = (
        "variant",
        "streams",
        "TTFT p50 ms",
        "TPOT p50 ms",
        "latency p50 ms",
        "out tok/s",
        "tok/s/req",
        "accept",
        "$/M out",
        "errors",
    )
    rows = []
    for name, level in levels:
        price = level.get("price") or {}
        medians = [(level[m] or {}).get("p50") for m in ("ttft_ms", "tpot_ms", "client_latency_ms")]
        rows.append(
            (
                name,
                level["concurrency"],
                *medians,
                level["output_tokens_per_s"],
                level["output_tokens_per_s_per_request"],
                level["acceptance_rate"],
                price.get("per_million_output"),
                level["invocation_errors"],
            )
        )
    return table(header, rows)


def load_options(**fields: object) -> EvaluateOptions:
    """Validated load options. Raises InvalidOptions."""
    return evaluations.options(**fields)
