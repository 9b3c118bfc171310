"""Finds leases of other hosts or homes that have expired by two clocks: the database's and this machine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.store import leases
from backend.store.leases import Lease
from backend.store.tables import JobRow


class ExpiredLeases:
    """Remembers since when this supervisor sees a lease that the database calls expired.

    Either clock may be set, so a lease must stay expired for its whole length by this machine's clock too.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._since = now, dict[Lease, float]()

    def find_expired(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Return those of the rows, all expired by the database's clock now, that are expired by both clocks."""
        by_lease, now = {leases.read_lease(row): row for row in rows}, self._now()
        self._since = {lease: self._since.get(lease, now) for lease in by_lease}
        return [by_lease[lease] for lease, since in self._since.items() if now - since > leases.LEASE_SECONDS]
