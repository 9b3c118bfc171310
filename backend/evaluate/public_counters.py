"""Reads the counters at `/metrics` of a server that was not started here, as vLLM reports them.

A server without counters, or one that hangs, is no error and costs at most `LIMIT_S`, once. The counters include
requests of others in the meantime. Knows nothing of load.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from backend.domain.load import counters
from backend.endpoint import metrics

LIMIT_S = 10.0


class PublicCounters:
    """The counters of one server; `speculates` is None until it has reported any."""

    def __init__(self, url: str, bearer_env: str | None = None, *, limit_s: float = LIMIT_S) -> None:
        self._url, self._bearer_env, self._limit_s = url, bearer_env, limit_s
        self._was_read = False
        self.speculates: bool | None = None

    def read(self) -> dict[str, float]:
        """Return the counters since the server's start, named as in `domain.load.counters`; empty if it has none."""
        if self._was_read and self.speculates is None:
            return {}
        self._was_read = True
        counted = self._read_within_limit()
        if "generation_tokens" in counted:
            self.speculates = "drafted_tokens" in counted
        return counted

    def _read_within_limit(self) -> dict[str, float]:
        """Read in a thread: a socket's time limit is for one read, so an endless trickle would never end."""
        replies: list[dict[str, float]] = []

        def ask() -> None:
            with suppress(ValueError):  # a sample that is no number
                replies.append(counters.parse_counters(metrics(self._url, self._bearer_env) or ""))

        reading = threading.Thread(target=ask, daemon=True)
        reading.start()
        reading.join(self._limit_s)
        return replies[0] if replies else {}
