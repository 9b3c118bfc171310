"""What an hour of an instance costs somewhere at some time, and who said so. Knows nothing of how a price is asked
for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.machine.device import Instance
from backend.domain.machine.targets import HardwareTables


class InstancePrice(Frozen):
    """On-demand price of one instance for real-time inference, as it was published when it was asked for (`as_of`)."""

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
    """A price that one refresh found other than the one before it, USD an hour."""

    instance: str
    region: str
    before: float
    before_as_of: datetime
    after: float
    as_of: datetime

    @property
    def share(self) -> float:
        """Of the earlier price: 0.1 is a tenth more."""
        return self.after / self.before - 1


def find_changes(prices: Iterable[InstancePrice]) -> list[PriceChange]:
    """Between refreshes that follow each other, the newest first. `prices`: by region and instance, the oldest
    first."""
    found = [
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
    return sorted(found, key=lambda each: each.as_of, reverse=True)


def apply_prices(hardwares: HardwareTables, prices: tuple[InstancePrice, ...]) -> HardwareTables:
    """The same instances with these prices; the others keep the bundled snapshot's. Rows of unknown instances are left
    out."""
    asked = {price.instance: price for price in prices}
    instances = {
        name: _with_price(row, asked[name]) if name in asked else row for name, row in hardwares.instances.items()
    }
    return hardwares._replace(instances=instances)


def apply_discount(hardwares: HardwareTables, share: float) -> HardwareTables:
    """With that share (0 to 1) off the price of each instance, as a Savings Plan gives."""
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
    """` (20% off)`, beside a price; empty without a discount."""
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


def price_note(instance: Instance | None) -> str | None:
    """Where and when the price held, and whether it was asked for or comes with this version; None without a price."""
    if instance is None or instance.sagemaker_usd_per_hour is None:
        return None
    of = "" if instance.price_refreshed else "bundled snapshot, "
    at = f"{instance.price_region}, as of {instance.price_as_of}"
    return f"on demand{discount_text(instance.discount)}, {at} ({of}{instance.price_source})"
