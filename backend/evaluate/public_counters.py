"""What a server that was not started here tells of its guesses at `/metrics`, as vLLM does. Knows nothing of load.

It may tell nothing, or hang: that is no error, and costs at most `LIMIT_S`, once. The counters are the server's, so
whatever others ask of it in the meantime is counted too.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from backend.domain.load import counters
from backend.endpoint import metrics

LIMIT_S = 2.0


class PublicCounters:
    """`read` as often as needed; `speculates` is None until the server has told, and for good where it does not."""

    def __init__(self, url: str, bearer_env: str | None = None, *, limit_s: float = LIMIT_S) -> None:
        self._url, self._bearer_env, self._limit_s = url, bearer_env, limit_s
        self._asked = False
        self.speculates: bool | None = None

    def read(self) -> dict[str, float]:
        """Counters since the server's start, under the names of `domain.load.counters`; empty where it tells none."""
        if self._asked and self.speculates is None:
            return {}
        self._asked = True
        found = self._within_the_limit()
        if "generation_tokens" in found:
            self.speculates = "drafted_tokens" in found
        return found

    def _within_the_limit(self) -> dict[str, float]:
        """A thread, since the limit of a socket is one for each read: an endless trickle would keep it."""
        told: list[dict[str, float]] = []

        def ask() -> None:
            with suppress(ValueError):  # a sample that is no number
                told.append(counters.parse_counters(metrics(self._url, self._bearer_env) or ""))

        reading = threading.Thread(target=ask, daemon=True)
        reading.start()
        reading.join(self._limit_s)
        return told[0] if told else {}
