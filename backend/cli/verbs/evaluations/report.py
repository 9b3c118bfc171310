"""`whetstone report EVALUATION`: the offline HTML file anew, with limits, prices and other tools' results chosen
afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend import service
from backend.cli.options import limits
from backend.cli.options.numbers import number_option
from backend.cli.output import Json, emit
from backend.domain.errors import RequestError
from backend.domain.validation import validate_fields
from backend.domain.what_if.costs import ApiPrice, WhatIf
from backend.service.evaluations import reports


def report_command(
    evaluation: Annotated[str, typer.Argument(help="An evaluation's id, e-...")],
    to: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    ttft: limits.MaxTtft = None,
    tpot: limits.MaxTpot = None,
    percentile: limits.PercentileName = limits.USUAL,
    request_ttft: Annotated[
        float | None, number_option("Goodput counts requests with a TTFT up to this, in ms.")
    ] = None,
    request_tpot: Annotated[
        float | None, number_option("Goodput counts requests with a TPOT up to this, in ms.")
    ] = None,
    price_per_hour: Annotated[float | None, number_option("USD per hour, instead of the evaluation's.")] = None,
    discount: Annotated[float | None, number_option("Discount on the hourly price, 0 to 0.99.", most=0.99)] = None,
    ratio: Annotated[float | None, number_option("Input:output token ratio, for blended prices.", 0.01)] = None,
    api_input: Annotated[float | None, number_option("USD of a hosted API per million input tokens.")] = None,
    api_output: Annotated[float | None, number_option("USD of a hosted API per million output tokens.")] = None,
    requests_a_month: Annotated[
        float | None, number_option("Also show the cost of this many requests per month.", 1.0)
    ] = None,
    imported: Annotated[list[str] | None, typer.Option(help="An imported result, b-... Repeatable.")] = None,
    json: Json = False,
) -> None:
    """Write an evaluation's report as one offline HTML file, with other limits and prices. Nothing runs again."""
    # 1. Gather limits and prices.
    request_limits = {
        name: value for name, value in (("ttft_ms", request_ttft), ("tpot_ms", request_tpot)) if value is not None
    }
    api = None
    if api_input is not None or api_output is not None:
        api = ApiPrice(per_million_input=api_input or 0.0, per_million_output=api_output or 0.0)
    choices = {
        "limits": limits.read_limits(ttft, tpot, percentile),
        "request_limits": request_limits,
        "per_hour": price_per_hour,
        "discount": discount,
        "input_output_ratio": ratio,
        "api": api,
        "requests_a_month": requests_a_month,
    }
    what_if = validate_fields(WhatIf, choices, RequestError)
    # 2. Write the page.
    page = reports.write_page(service.open_workspace(), evaluation, what_if, imported or [])
    try:
        to.write_bytes(page)
    except OSError as error:
        raise RequestError(f"{to} cannot be written ({error.strerror}): give another file with --to.") from None
    emit({"report": str(to), "bytes": len(page)}, as_json=json, text=f"Report: {to}")
