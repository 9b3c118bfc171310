"""Rows of serve jobs, as a supervisor leaves them, whose servers the caller runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

from backend.domain.jobs.jobs import Event
from backend.service import Workspace
from backend.store import history
from backend.store.tables import JobRow, now


def put_serve_job(
    workspace: Workspace, job_id: str, urls: Mapping[str, str], *, state: str = "running", host: str | None = None
) -> None:
    """Put a job whose servers, by name, are at those addresses; without any it has not loaded them yet."""
    document = [
        {"source": f"source of {name}", "name": name, "url": url, "served_name": name, "ready_seconds": 1.0}
        for name, url in urls.items()
    ]
    with workspace.store.session() as session:
        started = now()
        session.add(
            JobRow(
                id=job_id,
                kind="serve",
                state=state,
                title="Serve",
                owner="t",
                spec=json.dumps({"variants": [{"source": row["source"]} for row in document]}),
                host=host or socket.gethostname(),
                home=str(workspace.settings.home),
                started_at=started,
            )
        )
        session.flush()
        if document:
            event = Event(kind="phase", phase="serve", data={"endpoints": document})
            history.append(session, job_id, [event])
