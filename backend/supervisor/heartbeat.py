"""The supervisor's row: that it lives, that it ends, and the leases of its jobs.

A job is submitted before its supervisor is looked for (`service.jobs.supervisors.ensure_running`). So a supervisor that
ends by itself writes that down first, and looks for work again: a job from before is found, and who submits one later
finds that this supervisor ends.
"""

from __future__ import annotations

import threading

from sqlmodel import Session

from backend.domain.jobs.jobs import Event
from backend.store import history, leases, queue
from backend.store.database import Store
from backend.store.serving import endpoint_rows
from backend.store.tables import SupervisorRow


class Heartbeat:
    """Writes one supervisor's row. `beat` is called from a thread of its own."""

    def __init__(self, store: Store, row: SupervisorRow) -> None:
        self.store, self.row = store, row
        self._lock = threading.Lock()
        self._resting = False

    def beat(self) -> None:
        """Renew the row and the leases, but for one that has written down that it ends."""
        with self._lock:
            if not self._resting:
                self.store.run(lambda session: leases.renew(session, self.row))

    def rest(self) -> bool:
        """Write down that it ends, and tell whether it may: where there is work after all, it lives on."""
        with self._lock:
            self.hand_over()
            self._resting = True
        may_end = False
        try:
            may_end = not self._has_work()
        finally:
            self._resting = may_end
        if not may_end:
            self.beat()
        return may_end

    def hand_over(self) -> None:
        """Write down that it ends. Its jobs go on without it until the next supervisor of the home adopts them."""
        self.store.run(self._leave)

    def _has_work(self) -> bool:
        with self.store.read() as session:
            waiting, _ = queue.check_queue(session)
            unsettled = endpoint_rows.is_unsettled(session, self.row.host)
            return waiting or unsettled or bool(leases.list_owned(session, self.row))

    def _leave(self, session: Session) -> None:
        message = "The supervisor was stopped: the worker goes on, and the next one takes it up."
        for row in leases.list_owned(session, self.row):
            history.append(session, row.id, [Event(kind="state", message=message)])
        leases.hand_over(session, self.row)
