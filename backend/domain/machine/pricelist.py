"""What an hour of an instance costs somewhere at some time, and who said so. Knows nothing of how a price is asked for."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.machine.device import Instance
from backend.domain.machine.targets import Hardwares


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


def overlay(hardwares: Hardwares, prices: tuple[InstancePrice, ...]) -> Hardwares:
    """The same instances with these prices; the others keep the bundled snapshot's. Rows of unknown instances are left out."""
    asked = {price.instance: price for price in prices}
    instances = {name: _priced(row, asked[name]) if name in asked else row for name, row in hardwares.instances.items()}
    return hardwares._replace(instances=instances)


def _priced(row: Instance, price: InstancePrice) -> Instance:
    return row.model_copy(update={
        "sagemaker_usd_per_hour": price.usd_per_hour, "price_region": price.region, "price_source": price.source,
        "price_as_of": f"{price.as_of:%Y-%m-%d}", "price_refreshed": True,
    })  # fmt: skip


def note(instance: Instance | None) -> str | None:
    """Where and when the price held, and whether it was asked for or comes with this version; None without a price."""
    if instance is None or instance.sagemaker_usd_per_hour is None:
        return None
    of = "" if instance.price_refreshed else "bundled snapshot, "
    return f"on demand, {instance.price_region}, as of {instance.price_as_of} ({of}{instance.price_source})"
