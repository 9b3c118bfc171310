"""Options of `--target auto`: the expected load and the goal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backend.domain.errors import InvalidRecipe
from backend.domain.planner.target_choice import TargetGoal
from backend.domain.validation import validate_fields

InputTokens = Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens per prompt.")]
OutputTokens = Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens per answer.")]
Concurrency = Annotated[int, typer.Option(min=1, max=1_000_000, help="Concurrent requests.")]
GoalName = Annotated[
    str, typer.Option("--goal", help="With --target auto: cost, throughput (lowest cost per token) or latency.")
]
MaxTtft = Annotated[float | None, typer.Option(help="With --target auto: highest time to first token, in ms.")]
MaxTpot = Annotated[float | None, typer.Option(help="With --target auto: highest time per output token, in ms.")]
MinRate = Annotated[float | None, typer.Option(help="With --target auto: lowest output tokens/s.")]
MinContext = Annotated[int | None, typer.Option(help="With --target auto: lowest context length, in tokens.")]


def read_goal(**fields: Any) -> TargetGoal:
    """Return the validated goal. Raises InvalidRecipe, which names the wrong option."""
    return validate_fields(TargetGoal, fields, InvalidRecipe)
