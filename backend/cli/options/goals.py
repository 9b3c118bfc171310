"""Options of `--target auto`: the expected load and the goal."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backend.domain.errors import InvalidRecipe
from backend.domain.planner.target_choice import TargetGoal
from backend.domain.validation import validate_fields

InputTokens = Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens of a prompt.")]
OutputTokens = Annotated[int, typer.Option(min=1, max=10_000_000, help="Tokens of an answer.")]
Concurrency = Annotated[int, typer.Option(min=1, max=1_000_000, help="Requests at once.")]
GoalName = Annotated[
    str, typer.Option("--goal", help="With --target auto: cost, throughput (cost a token) or latency.")
]
MaxTtft = Annotated[float | None, typer.Option(help="With --target auto: time to first token at most.")]
MaxTpot = Annotated[float | None, typer.Option(help="With --target auto: time per output token at most.")]
MinRate = Annotated[float | None, typer.Option(help="With --target auto: output tokens/s at least.")]
MinContext = Annotated[int | None, typer.Option(help="With --target auto: tokens of one sequence at least.")]


def read_goal(**fields: Any) -> TargetGoal:
    """Return the validated goal. Raises InvalidRecipe, which names the wrong option."""
    return validate_fields(TargetGoal, fields, InvalidRecipe)
