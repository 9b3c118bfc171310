"""`whetstone prices ...`: what an hour of each instance costs, where and as of when."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.output import Json, emit, table
from backend.service.machines import prices
from backend.service.machines.prices import PricedInstance, RefreshResult

app = typer.Typer(no_args_is_help=True)
Region = Annotated[str | None, typer.Option(help="AWS region. Default: that of the environment, else us-east-1.")]
HEADER = ("instance", "accelerators", "GiB", "USD/h", "after discount", "USD/h per GiB", "region", "as of", "source")
CHANGES = ("instance", "region", "was USD/h", "as of", "is USD/h", "as of", "change")


@app.command("list")
def list_prices(
    instance: Annotated[str | None, typer.Option(help="One instance, such as ml.g5.12xlarge.")] = None,
    family: Annotated[str | None, typer.Option(help="One family, such as g5.")] = None,
    discount: Annotated[
        float | None,
        typer.Option(help="Discount on the on-demand price, 0 to 1. Default: WHETSTONE_DISCOUNT."),
    ] = None,
    json: Json = False,
) -> None:
    """List on-demand prices of SageMaker hosting with region, date and source: refreshed ones, else those of this
    version's snapshot."""
    workspace = service.open_workspace()
    priced = prices.listing(workspace, instance=instance, family=family, discount=discount)
    emit(priced, as_json=json, text=_text(priced, workspace.settings.discount if discount is None else discount))


@app.command()
def refresh(
    region: Region = None,
    json: Json = False,
) -> None:
    """Fetch today's prices from the AWS Pricing API and store them. Needs AWS credentials with pricing:GetProducts."""
    refreshed = prices.refresh(service.open_workspace(), region)
    emit(refreshed, as_json=json, text=_refresh_text(refreshed))


@app.command("changes")
def list_changes(json: Json = False) -> None:
    """Show how prices changed between refreshes, newest first."""
    price_changes = prices.list_changes(service.open_workspace())
    rows = [
        (
            one.instance,
            one.region,
            _usd(one.before),
            f"{one.before_as_of:%Y-%m-%d}",
            _usd(one.after),
            f"{one.as_of:%Y-%m-%d}",
            f"{one.share:+.1%}",
        )
        for one in price_changes
    ]
    none = "No price has changed between refreshes: `whetstone prices refresh` fetches today's from AWS."
    emit(price_changes, as_json=json, text=table(CHANGES, rows) if rows else none)


def _text(priced: list[PricedInstance], discount: float) -> str:
    rows = [
        (
            one.instance,
            f"{one.accelerators} x {one.accelerator}",
            f"{one.memory_gib:g}",
            _usd(one.usd_per_hour),
            _usd(one.discounted_usd_per_hour),
            _usd(one.usd_per_hour_per_gib),
            one.region or "-",
            one.as_of or "-",
            ("refreshed: " if one.refreshed else "snapshot: ") + (one.source or "")
            if one.source
            else "no source found",
        )
        for one in priced
    ]
    after = f" The discount is {discount:.3g}." if discount else ""
    refresh_hint = "`whetstone prices refresh` fetches today's from AWS."
    return f"{table(HEADER, rows)}\nOn-demand hosting prices in USD.{after} {refresh_hint}"


def _usd(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4f}"


def _refresh_text(refreshed: RefreshResult) -> str:
    lines = [f"{refreshed.prices} prices of {refreshed.region}, as of {refreshed.as_of}, from the AWS Pricing API."]
    if refreshed.missing:
        lines.append(f"Without a price there (the snapshot's price is used): {', '.join(refreshed.missing)}.")
    lines += [f"Left out: {reason}." for reason in refreshed.skipped]
    return "\n".join(lines)
