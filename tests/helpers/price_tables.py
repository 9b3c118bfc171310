"""Price tables in a store, fetched on several days."""

from __future__ import annotations

from datetime import datetime

from backend.domain.machine.price_list import InstancePrice, PriceList
from backend.service import Workspace
from backend.store import prices as stored


def refreshed(day: datetime, region: str, **dollars: float) -> PriceList:
    named = {name.replace("_", "."): value for name, value in dollars.items()}
    return PriceList(
        region,
        tuple(
            InstancePrice(instance=name, region=region, usd_per_hour=value, as_of=day, source="s")
            for name, value in named.items()
        ),
    )


def keep(home: Workspace, price_list: PriceList) -> None:
    home.store.run(lambda session: stored.save(session, price_list))
