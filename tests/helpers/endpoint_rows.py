"""Rows of endpoints of this machine, as the service writes them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import EndpointSpec
from backend.store.database import Store
from backend.store.serving import endpoint_rows
from backend.store.tables import EndpointRow

PORT = 8701


def endpoint_spec(name: str = "chat", *, source: str = "starter", port: int = PORT, **fields: Any) -> EndpointSpec:
    """Return the specification of an endpoint's jobs; its variant has no files."""
    variant = Variant(name=name, source=source, kind="model", model_path=str(Path("/none") / name))
    return EndpointSpec(variants=(variant,), endpoint=name, port=port, **({"memory_bytes": 1000} | fields))


def put_endpoint(store: Store, spec: EndpointSpec | None = None, *, host: str | None = None, **fields: Any) -> None:
    """Put the row of an endpoint that is to run and has no job yet."""
    chosen = spec or endpoint_spec()
    row = EndpointRow(
        name=chosen.endpoint,
        stamp=f"of {chosen.endpoint}",
        source=chosen.variants[0].source,
        spec=chosen.model_dump_json(),
        owner="local",
        host=host or socket.gethostname(),
        port=chosen.port,
        **fields,
    )
    assert store.run(lambda session: endpoint_rows.add(session, row))
