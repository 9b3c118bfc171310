"""The price of an hour of an instance, with its region, time and source. Nothing here requests prices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.machine.device import Instance
from backend.domain.machine.targets import HardwareTables

REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
"""Name of an AWS region."""


class InstancePrice(Frozen):
    """An on-demand price of one instance for real-time inference, as published when it was requested (`as_of`)."""

    instance: str
    region: str
    usd_per_hour: float = Field(gt=0)
    as_of: datetime
    source: str


class PriceList(NamedTuple):
    """Prices of one region; `skipped` says in words which answers could not be used."""

    region: str
    prices: tuple[InstancePrice, ...]
    skipped: tuple[str, ...] = ()


class PriceChange(Frozen):
    """A price that one refresh found other than the one before it, USD per hour."""

    instance: str
    region: str
    before: float
    before_as_of: datetime
    after: float
    as_of: datetime

    @property
    def share(self) -> float:
        """Return the change as a share of the earlier price: 0.1 is a tenth more."""
        return self.after / self.before - 1


def find_changes(prices: Iterable[InstancePrice]) -> list[PriceChange]:
    """Return the changes between consecutive refreshes, the newest first. `prices`: by region and instance, the oldest
    first."""
    price_changes = [
        PriceChange(
            instance=now.instance,
            region=now.region,
            before=was.usd_per_hour,
            before_as_of=was.as_of,
            after=now.usd_per_hour,
            as_of=now.as_of,
        )
        for was, now in pairwise(prices)
        if (was.region, was.instance) == (now.region, now.instance) and was.usd_per_hour != now.usd_per_hour
    ]
    return sorted(price_changes, key=lambda change: change.as_of, reverse=True)


def apply_prices(hardwares: HardwareTables, prices: tuple[InstancePrice, ...]) -> HardwareTables:
    """Return the same instances with these prices; the others keep the bundled snapshot's. Rows of unknown instances
    are skipped."""
    by_instance = {price.instance: price for price in prices}
    instances = {
        name: _with_price(row, by_instance[name]) if name in by_instance else row
        for name, row in hardwares.instances.items()
    }
    return hardwares._replace(instances=instances)


def list_regions(hardwares: HardwareTables, refreshed: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the regions of which prices are known, in order: those of the instances and those that were refreshed.

    A region that a source only implies is none of them.
    """
    regions = {row.price_region for row in hardwares.instances.values() if row.sagemaker_usd_per_hour is not None}
    return tuple(sorted({region for region in (*regions, *refreshed) if region and REGION.fullmatch(region)}))


def keep_region(hardwares: HardwareTables, region: str) -> HardwareTables:
    """Return the instances with the prices of that region alone; an instance without one there has none, and its
    `price_region` says where."""
    none = {
        "sagemaker_usd_per_hour": None,
        "price_source": None,
        "price_as_of": None,
        "price_refreshed": False,
        "price_region": region,
    }
    instances = {
        name: row if row.price_region == region else row.model_copy(update=none)
        for name, row in hardwares.instances.items()
    }
    return hardwares._replace(instances=instances)


def apply_discount(hardwares: HardwareTables, share: float) -> HardwareTables:
    """Return the instances with that share (0 to 1) off each price, as a Savings Plan gives."""
    instances = {
        name: row.model_copy(
            update={"sagemaker_usd_per_hour": row.sagemaker_usd_per_hour * (1 - share), "discount": share}
        )
        if share and row.sagemaker_usd_per_hour is not None
        else row
        for name, row in hardwares.instances.items()
    }
    return hardwares._replace(instances=instances)


def discount_text(share: float) -> str:
    """Return ` (20% off)`, to follow a price; empty without a discount."""
    return f" ({share * 100:.3g}% off)" if share else ""


def _with_price(row: Instance, price: InstancePrice) -> Instance:
    return row.model_copy(
        update={
            "sagemaker_usd_per_hour": price.usd_per_hour,
            "price_region": price.region,
            "price_source": price.source,
            "price_as_of": f"{price.as_of:%Y-%m-%d}",
            "price_refreshed": True,
        }
    )


def missing_note(instance: Instance | None) -> str:
    """Return why there is no price: `none is published`, or `none is known in eu-west-1`."""
    region = instance.price_region if instance else None
    return "none is published" if region is None else f"none is known in {region}"


def price_note(instance: Instance | None) -> str | None:
    """Return where and when the price held, and whether it was requested or comes with this version; None without a
    price."""
    if instance is None or instance.sagemaker_usd_per_hour is None:
        return None
    origin = "" if instance.price_refreshed else "bundled snapshot, "
    place = f"{instance.price_region}, as of {instance.price_as_of}"
    return f"on demand{discount_text(instance.discount)}, {place} ({origin}{instance.price_source})"
