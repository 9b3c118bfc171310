"""Leases of other hosts or homes that have run out, by the database's clock and by this machine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.store import leases
from backend.store.leases import Lease
from backend.store.tables import JobRow


class ExpiredLeases:
    """Remembers since when this supervisor sees a lease that the database's clock calls late: either clock may be set,
    so it must stay so for the length of one by this machine's too."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._since = now, dict[Lease, float]()

    def find_expired(self, expired: Sequence[JobRow]) -> list[JobRow]:
        """Of the rows that the database calls late now, those whose lease is over by both."""
        rows, now = {leases.read_lease(row): row for row in expired}, self._now()
        self._since = {held: self._since.get(held, now) for held in rows}
        return [rows[held] for held, since in self._since.items() if now - since > leases.LEASE_SECONDS]
