"""`whetstone fleet EVALUATION --rate 300`: the machines that carry a rate of requests within latency limits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from backend import service
from backend.cli.options import limits
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit, table
from backend.domain.errors import RequestError
from backend.domain.figures import code, counted, figure, listed
from backend.domain.validation import validate_fields
from backend.domain.what_if import fleet
from backend.domain.what_if.costs import WhatIf
from backend.service.evaluations import evaluations


def fleet_command(
    evaluation: Annotated[str, typer.Argument(help="An evaluation's id, e-...")],
    rate: Annotated[float, number_option("Requests per second that all machines together must answer.", 0.001)],
    ttft: limits.MaxTtft = None,
    tpot: limits.MaxTpot = None,
    percentile: limits.PercentileName = limits.USUAL,
    headroom: Annotated[
        float, number_option("Percent of each machine that is kept free for bursts.", most=99.0)
    ] = fleet.HEADROOM * 100,
    price_per_hour: Annotated[
        float | None, number_option("USD per hour of a machine, instead of the evaluation's.")
    ] = None,
    json: Json = False,
) -> None:
    """Say how many machines carry a rate of requests, from what one was measured to answer. Nothing runs again."""
    # 1. What one machine answers within the limits.
    choices = {"limits": limits.read_limits(ttft, tpot, percentile), "per_hour": price_per_hour}
    what_if = validate_fields(WhatIf, choices, RequestError)
    document = evaluations.show(service.open_workspace(), evaluation).document
    fleets, unfit = fleet.size_fleets(document, what_if, rate, headroom / 100)
    if not fleets:
        raise RequestError(f"No variant of {evaluation} meets these limits at any measured load: raise them.")
    # 2. The machines of each variant.
    facts = {"rate": rate, "headroom": headroom / 100, "fleets": fleets, "unfit": unfit}
    emit(facts, as_json=json, text=describe(fleets, unfit, rate, headroom))


def describe(fleets: list[fleet.Fleet], unfit: list[str], rate: float, headroom: float) -> str:
    """Return the table, then the best fleet in a sentence and what was left out."""
    # 1. A row for each variant.
    header = ("variant", "requests/s each", "machines", "without headroom", "used", "USD per hour", "USD per month")
    rows: list[tuple[Any, ...]] = [
        (
            each.variant,
            f"{figure(each.requests_per_s)}{' or more' if each.at_the_end else ''}",
            each.machines,
            each.machines_without_headroom,
            f"{each.utilisation:.0%}",
            figure(each.per_hour) if each.per_hour is not None else "-",
            figure(each.per_month) if each.per_month is not None else "-",
        )
        for each in fleets
    ]
    # 2. The first, and what these figures are.
    best = fleets[0]
    sentences = [
        f"{rate:g} requests/s take {counted(best.machines, 'machine')} with {code(best.variant)}; {headroom:g}% of "
        "each is kept free for bursts.",
        "Requests/s are measured within the limits; `or more` means that higher loads were not measured.",
    ]
    sentences += [f"Left out, since the limits are met at no measured load: {listed(unfit)}."] if unfit else []
    return "\n\n".join([table(header, rows), "\n".join(sentences).replace("`", "")])
