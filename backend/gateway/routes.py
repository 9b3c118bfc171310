"""Routes of the gateway: which server answers for a model name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from backend.domain.frozen import Frozen
from backend.gateway.refusals import Refusal

LISTED = 20
"""Names in the sentence about an unknown model."""


class Upstream(Frozen):
    """A server of a running serve job.

    `name` and `source` are the names that clients may give; `served_name` is the one that the server knows. `base`
    ends before `/v1`; `key` is the server's own.
    """

    name: str
    source: str
    served_name: str
    base: str
    key: str | None = None
    job: str = ""
    since: int = 0
    """Unix time at which the job started."""
    is_restarted: bool = False
    """An endpoint: whatever ends it, a supervisor starts it again at the same address."""


class RouteTable:
    """Servers by model name; of two with the same name, the one whose job started last."""

    def __init__(self, upstreams: Iterable[Upstream] = ()) -> None:
        newest_first = sorted(upstreams, key=lambda upstream: (upstream.since, upstream.job), reverse=True)
        self._by_name: dict[str, Upstream] = {}
        for upstream in newest_first:
            self._by_name.setdefault(upstream.name, upstream)
        self._by_source: dict[str, Upstream] = {}
        for upstream in newest_first:
            self._by_source.setdefault(upstream.source, upstream)

    @property
    def names(self) -> Sequence[str]:
        """Return every name that a client may give, without repetitions."""
        return list(dict.fromkeys([*self._by_name, *self._by_source]))

    def choose(self, model: str) -> Upstream | None:
        """Return the server that answers a request for that model; None where none does.

        All requests pass here, one by one: a rule that divides the requests for one name between several servers
        belongs here.
        """
        return self._by_name.get(model) or self._by_source.get(model)

    def require(self, model: str) -> Upstream:
        """Return the server for that model. Raises Refusal (404) that lists the names there are."""
        upstream = self.choose(model)
        if upstream is None:
            names = self.names
            served = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
            instead = f"choose one of {served}" if names else "nothing is served now, so start a server first"
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"The model `{model[:100]}` is not served here: {instead}.",
                kind="unknown_model",
                code="model_not_found",
                param="model",
            )
        return upstream

    def document(self) -> dict[str, Any]:
        """Return the answer to `GET /v1/models`: a row for each name."""
        rows = [(name, self.choose(name)) for name in self.names]
        return {
            "object": "list",
            "data": [
                {"id": name, "object": "model", "created": upstream.since, "owned_by": "whetstone", "job": upstream.job}
                for name, upstream in rows
                if upstream is not None
            ],
        }
