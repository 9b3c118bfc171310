"""The prices that were asked for: one row an instance, region and refresh. Earlier refreshes stay, as their history."""

from __future__ import annotations

from sqlmodel import Session, col, select

from backend.domain.machine.price_list import InstancePrice, PriceList
from backend.store.tables import PriceRow


def save(session: Session, price_list: PriceList) -> None:
    """Beside those of earlier refreshes."""
    for price in price_list.prices:
        session.merge(PriceRow(**price.model_dump()))


def list_regions(session: Session) -> tuple[str, ...]:
    """Return the regions that were refreshed, in order."""
    return tuple(session.exec(select(PriceRow.region).distinct().order_by(col(PriceRow.region))))


def list_latest(session: Session, region: str | None = None) -> tuple[InstancePrice, ...]:
    """Return the prices of the last refresh, or of the last one of that region; prices of two regions, or of two days,
    are never mixed."""
    newest = select(PriceRow).order_by(col(PriceRow.as_of).desc(), col(PriceRow.region)).limit(1)
    last = session.exec(newest if region is None else newest.where(PriceRow.region == region)).first()
    if last is None:
        return ()
    chosen = select(PriceRow).where(PriceRow.region == last.region, PriceRow.as_of == last.as_of)
    return tuple(map(_price, session.exec(chosen.order_by(col(PriceRow.instance)))))


def list_history(session: Session) -> tuple[InstancePrice, ...]:
    """Return the prices of every refresh, by region and instance, the oldest first."""
    every = select(PriceRow).order_by(col(PriceRow.region), col(PriceRow.instance), col(PriceRow.as_of))
    return tuple(map(_price, session.exec(every)))


def _price(row: PriceRow) -> InstancePrice:
    return InstancePrice.model_validate(row.model_dump())
