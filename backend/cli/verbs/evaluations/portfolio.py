"""`whetstone portfolio EVALUATION`: the best variant for each number of streams, and where to switch."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.options import limits
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit, table
from backend.domain.what_if.portfolio import Portfolio
from backend.present import portfolio_words
from backend.service.serving import gateway


def portfolio_command(
    evaluation: Annotated[str, typer.Argument(help="An evaluation's id, e-...")],
    ttft: limits.MaxTtft = None,
    tpot: limits.MaxTpot = None,
    percentile: limits.PercentileName = limits.USUAL,
    max_kl: Annotated[
        float | None, number_option("Only variants with a mean KL divergence up to this, in nats per token.")
    ] = None,
    json: Json = False,
) -> None:
    """Name the best variant for each number of streams that an evaluation measured. Nothing runs again."""
    slo = limits.read_limits(ttft, tpot, percentile)
    portfolio, _ = gateway.read_portfolio(service.open_workspace(), evaluation, slo, max_kl)
    emit(portfolio.model_dump(mode="json"), as_json=json, text=describe(portfolio))


def describe(portfolio: Portfolio) -> str:
    """Return the ranges as a table, then the sentences."""
    rows = [(portfolio_words.range_text(part), part.variant) for part in portfolio.ranges]
    sentences = [portfolio_words.sentence(portfolio), *portfolio_words.switch_sentences(portfolio)]
    sentences += [*portfolio_words.note_sentences(portfolio), portfolio_words.BASIS]
    return "\n\n".join([table(("load", "variant"), rows), "\n".join(sentences).replace("`", "")])
