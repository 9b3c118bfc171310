"""`whetstone bench`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from backend import service
from backend.cli.flags import sentence
from backend.cli.options import load
from backend.cli.output import emit
from backend.cli.text.levels import levels_table
from backend.cli.verbs import bench_import
from backend.cli.verbs.optimize import Json
from backend.service.evaluations import bench, evaluations


def register(app: typer.Typer) -> None:
    group = typer.Typer(cls=bench_import.UrlOrVerb)
    group.command(bench_import.RUN)(bench_command)
    bench_import.register(group)
    app.add_typer(group, name="bench", help="Run the load generator alone, or import what another one wrote.")


def bench_command(
    url: Annotated[str, typer.Argument(help="The endpoint, such as http://127.0.0.1:8000/v1.")],
    model: Annotated[str | None, typer.Option(help="The model name to send; the endpoint's first one by default.")] = None,
    concurrency: load.Concurrency = None,
    rate: load.Rate = None,
    poisson: load.Poisson = False,
    ramp: load.Ramp = None,
    trace: load.Trace = None,
    sweep: load.Sweep = None,
    sweep_to: load.SweepTo = None,
    workload: load.Workload = "starter-code",
    column: load.Column = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="The model whose tokenizer measures a built-in workload: an id or a folder.")
    ] = None,
    requests: load.Requests = None,
    seconds: load.Seconds = None,
    repeats: load.Repeats = 1,
    max_tokens: load.MaxTokens = 64,
    temperature: load.Temperature = 0.0,
    chat: load.Chat = False,
    stream: load.Streaming = True,
    connections: load.Connections = 1024,
    warmup: load.Warmup = 2,
    warmup_seconds: load.WarmupSeconds = 2.0,
    timeout: load.Timeout = 120.0,
    seed: load.Seed = 0,
    price_per_hour: load.Price = None,
    discount: load.Discount = 0.0,
    ratio: load.Ratio = 3.0,
    bearer_env: Annotated[str | None, typer.Option(help="Environment variable that holds the bearer token.")] = None,
    json: Json = False,
) -> None:
    """Run the load generator alone against any OpenAI-compatible endpoint.

    Levels that were done are printed even where the server ended before the rest; the exit code then is 1.
    `whetstone bench import FILE...` instead imports a result of GuideLLM or vLLM's bench; `bench imported` lists those, `bench
    forget ID` drops one.
    """
    workspace = service.open_workspace()
    chosen = evaluations.options(
        **load.shape(concurrency=concurrency, rate=rate, poisson=poisson, ramp=ramp, trace=trace, sweep=sweep, sweep_to=sweep_to,
                     chat=chat),
        workload=trace or workload, columns=load.columns(column), requests=requests, seconds=seconds, repeats=repeats,
        max_tokens=max_tokens, temperature=temperature, stream=stream, connections=connections, warmup_requests=warmup,
        warmup_seconds=warmup_seconds, timeout_s=timeout, seed=seed, price_per_hour=price_per_hour, discount=discount,
        input_output_ratio=ratio, quality=False,
    )  # fmt: skip
    outcome = bench.run(workspace, url, model, chosen, bearer_env=bearer_env, tokenizer=tokenizer)
    if outcome.levels or outcome.failure is None:
        emit(outcome.levels, as_json=json, text=levels_table([(url, level) for level in outcome.levels]))
    if outcome.failure is not None:
        kept = f" {len(outcome.levels)} level(s) were done before that." if outcome.levels else ""
        print(f"whetstone: {sentence(outcome.failure)}{kept}", file=sys.stderr)
        raise typer.Exit(outcome.failure.exit_code)
