"""Prices of instances: the bundled snapshot with what was refreshed over it, after a discount; and the refresh
itself."""

from __future__ import annotations

from collections.abc import Iterable

from backend.catalog.bundled import instances
from backend.catalog.remote import prices as published
from backend.domain.errors import NotFound, RequestError
from backend.domain.evaluation.prices import Pricing
from backend.domain.frozen import Frozen
from backend.domain.machine import price_list
from backend.domain.machine.device import Instance
from backend.domain.machine.price_list import PriceChange
from backend.domain.roles import Action
from backend.domain.similar_names import nearest
from backend.service.machines import targets
from backend.service.workspace import Workspace
from backend.store import prices as stored


class PricedInstance(Frozen):
    """An instance with its hourly price in USD and where that holds; the price is None where no source was found."""

    instance: str
    family: str
    accelerator: str
    accelerators: int
    memory_gib: float
    """Memory of all its accelerators together."""
    memory_gb_s: float
    """Nominal bandwidth, of all its accelerators together."""
    usd_per_hour: float | None
    discounted_usd_per_hour: float | None
    usd_per_hour_per_gib: float | None
    """After the discount, of accelerator memory."""
    region: str | None
    as_of: str | None
    source: str | None
    source_text: str | None
    """The name of `source` in a sentence."""
    refreshed: bool
    """Fetched from AWS here, else from the snapshot of this version."""


class RefreshResult(Frozen):
    """The result of a price refresh. `missing` are instances without a price in that region; they keep the snapshot's
    price."""

    region: str
    as_of: str
    prices: int
    missing: tuple[str, ...]
    skipped: tuple[str, ...]


def listing(
    workspace: Workspace, *, instance: str | None = None, family: str | None = None, discount: float | None = None
) -> list[PricedInstance]:
    """Every instance in the data's order, or those asked for. `discount` is 0 to 1, off the on-demand price; None is
    that of the settings.

    Raises NotFound for an unknown instance or family, RequestError for a discount that is none.
    """
    # 1. Check the discount.
    discount = workspace.settings.discount if discount is None else discount
    if not 0 <= discount < 1:
        raise RequestError(f"A discount is a share from 0 to below 1, such as 0.2 for 20 %: {discount:g} is none.")
    # 2. Check the names.
    rows = targets.hardwares(workspace, on_demand=True).instances
    if instance is not None and instance not in rows:
        raise NotFound(_unknown("instance", instance, rows))
    families = dict.fromkeys(row.family for row in rows.values())
    if family is not None and family not in families:
        raise NotFound(_unknown("instance family", family, families))
    # 3. Choose the instances and price them.
    explained = instances.sources()
    chosen = (row for row in rows.values() if instance in {None, row.name} and family in {None, row.family})
    return [_priced(row, discount, explained) for row in chosen]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = ", ".join(f"`{other}`" for other in nearest(name, known))
    return f"There is no {what} `{name[:80]}`: the nearest are {near}."


def _priced(row: Instance, discount: float, explained: dict[str, str]) -> PricedInstance:
    per_hour = row.sagemaker_usd_per_hour
    after = None if per_hour is None else Pricing(per_hour=per_hour, discount=discount).hour
    source = row.price_source
    return PricedInstance(
        instance=row.name,
        family=row.family,
        accelerator=row.accelerator,
        accelerators=row.accelerator_count,
        memory_gib=row.memory_gib_total,
        memory_gb_s=row.memory_gb_s_per_accelerator * row.accelerator_count,
        usd_per_hour=per_hour,
        discounted_usd_per_hour=after,
        usd_per_hour_per_gib=None if after is None else after / row.memory_gib_total,
        region=row.price_region,
        as_of=row.price_as_of,
        source=source,
        source_text=explained.get(source, source) if source else None,
        refreshed=row.price_refreshed,
    )


def refresh(workspace: Workspace, region: str | None = None) -> RefreshResult:
    """Ask AWS for the hosting prices of a region (None: the environment's, else us-east-1) and keep them over the
    snapshot. Those of earlier refreshes stay, as history.

    Raises ReadOnly in a demonstration, and what `aws.pricing.hosting_prices` does; nothing is changed then.
    """
    workspace.check(Action.REFRESH_PRICES)
    fetched = published.fetch(region)
    workspace.change(Action.REFRESH_PRICES, fetched.region, lambda session: stored.save(session, fetched))
    names = {price.instance for price in fetched.prices}
    return RefreshResult(
        region=fetched.region,
        as_of=f"{fetched.prices[0].as_of:%Y-%m-%d}",
        prices=len(names),
        missing=tuple(name for name in instances.load().instances if name not in names),
        skipped=fetched.skipped,
    )


def list_regions(workspace: Workspace) -> tuple[str, ...]:
    """Return the regions of which prices are known, in order: those of the snapshot and those that were refreshed."""
    with workspace.store.read() as session:
        return price_list.list_regions(instances.load(), stored.list_regions(session))


def list_changes(workspace: Workspace) -> list[PriceChange]:
    """Return the price changes between refreshes, newest first."""
    with workspace.store.read() as session:
        return price_list.find_changes(stored.list_history(session))


def missing_credentials() -> str | None:
    """Which credentials a refresh lacks, in words; None where there are some."""
    return published.missing_credentials()
