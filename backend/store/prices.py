"""The prices that were asked for: one row an instance and region, a region's rows replaced together."""

from __future__ import annotations

from sqlmodel import Session, col, delete, select

from backend.domain.machine.pricelist import InstancePrice, PriceList
from backend.store.tables import PriceRow


def replace(session: Session, price_list: PriceList) -> None:
    session.exec(delete(PriceRow).where(col(PriceRow.region) == price_list.region))
    for price in price_list.prices:
        session.add(PriceRow(**price.model_dump()))


def latest(session: Session) -> tuple[InstancePrice, ...]:
    """Those of the region that was asked for last; prices of two regions are never mixed by this."""
    newest = select(PriceRow.region).order_by(col(PriceRow.as_of).desc(), col(PriceRow.region)).limit(1).scalar_subquery()
    rows = session.exec(select(PriceRow).where(col(PriceRow.region) == newest).order_by(col(PriceRow.instance)))
    return tuple(InstancePrice.model_validate(row.model_dump()) for row in rows)
