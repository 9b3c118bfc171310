"""`whetstone portfolio EVALUATION`: the best variant for each number of streams, and where to switch."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit, table
from backend.domain.errors import RequestError
from backend.domain.limits.slo import Slo
from backend.domain.what_if.portfolio import Portfolio, make_portfolio
from backend.present import portfolio_words
from backend.service.evaluations import evaluations


def portfolio_command(
    evaluation: Annotated[str, typer.Argument(help="An evaluation's id, e-...")],
    ttft_p95: Annotated[float | None, number_option("Only levels with a TTFT p95 up to this, in ms.")] = None,
    tpot_p95: Annotated[float | None, number_option("Only levels with a TPOT p95 up to this, in ms.")] = None,
    max_kl: Annotated[
        float | None, number_option("Only variants with a mean KL divergence up to this, in nats per token.")
    ] = None,
    json: Json = False,
) -> None:
    """Name the best variant for each number of streams that an evaluation measured. Nothing runs again."""
    document = evaluations.show(service.open_workspace(), evaluation).document
    limits = Slo(ttft_ms=ttft_p95, tpot_ms=tpot_p95)
    portfolio = make_portfolio(document, limits, max_kl)
    if portfolio is None:
        raise RequestError(f"No portfolio can be read from {evaluation}. {portfolio_words.TOO_FEW}")
    emit(portfolio.model_dump(mode="json"), as_json=json, text=describe(portfolio))


def describe(portfolio: Portfolio) -> str:
    """Return the ranges as a table, then the sentences."""
    rows = [(portfolio_words.range_text(part), part.variant) for part in portfolio.ranges]
    sentences = [portfolio_words.sentence(portfolio), *portfolio_words.switch_sentences(portfolio)]
    sentences += [*portfolio_words.note_sentences(portfolio), portfolio_words.BASIS]
    return "\n\n".join([table(("load", "variant"), rows), "\n".join(sentences).replace("`", "")])
