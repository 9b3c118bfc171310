"""Options of `--target auto`: the expected load and the goal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backend.cli.options.numbers import require_finite
from backend.domain.errors import InvalidRecipe, RequestError
from backend.domain.planner.planned_load import LEAST_RATE
from backend.domain.planner.roofline import MOST_RATE, ExpectedLoad
from backend.domain.planner.target_choice import TargetGoal
from backend.domain.validation import validate_fields

InputTokens = Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens per prompt.")]
OutputTokens = Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens per answer.")]
Concurrency = Annotated[
    int | None, typer.Option(min=1, max=1_000_000, help="Concurrent requests (1 unless a rate is given).")
]
Rate = Annotated[
    float | None,
    typer.Option(
        callback=require_finite,
        min=LEAST_RATE,
        max=MOST_RATE,
        help="Requests per second, in place of --concurrency: the estimate finds how many are in flight, and on how "
        "many instances.",
    ),
]
GoalName = Annotated[
    str, typer.Option("--goal", help="With --target auto: cost, throughput (lowest cost per token) or latency.")
]
MaxTtft = Annotated[float | None, typer.Option(help="With --target auto: highest time to first token, in ms.")]
MaxTpot = Annotated[float | None, typer.Option(help="With --target auto: highest time per output token, in ms.")]
MinRate = Annotated[float | None, typer.Option(help="With --target auto: lowest output tokens/s.")]
MinContext = Annotated[int | None, typer.Option(help="With --target auto: lowest context length, in tokens.")]


def read_load(input_tokens: int, output_tokens: int, concurrency: int | None, rate: float | None) -> ExpectedLoad:
    """Return the load of an estimate. Raises RequestError where both a concurrency and a rate were given."""
    if concurrency is not None and rate is not None:
        raise RequestError("--rate takes the place of --concurrency: give one of them.")
    streams = {} if concurrency is None else {"concurrency": concurrency}
    return ExpectedLoad(input_tokens=input_tokens, output_tokens=output_tokens, rate=rate, **streams)


def read_goal(**fields: Any) -> TargetGoal:
    """Return the validated goal. Raises InvalidRecipe, which names the wrong option."""
    return validate_fields(TargetGoal, fields, InvalidRecipe)
