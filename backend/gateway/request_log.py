"""The request log: one JSON object per line, in a rotated file for the owner alone or on standard output.

A thread writes, so that no request waits for the disk.
"""

from __future__ import annotations

import json
import logging
import sys
from logging.handlers import QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from backend.domain.errors import RequestError
from backend.gateway.exchange import Exchange
from backend.logs import RotatingLog

MOST_BYTES, MOST_FILES = 50_000_000, 4
"""The most bytes of one file, and the number of earlier files that remain."""
CONTENT_BYTES = 200_000
"""The most bytes of a request and of an answer that a line holds."""


class RequestLog:
    """Writes a line for each exchange. `path` None is standard output; `with_content` adds what was asked and answered.

    Raises RequestError where the file cannot be written.
    """

    def __init__(self, path: Path | None, *, with_content: bool = False) -> None:
        self.with_content = with_content
        try:
            handler: logging.Handler = logging.StreamHandler(sys.stdout)
            if path is not None:
                handler = RotatingLog(path, maxBytes=MOST_BYTES, backupCount=MOST_FILES, encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{path} cannot be written ({error.strerror}): give another {{}}.", "log") from None
        self._handler = handler
        self._lines: SimpleQueue[Any] = SimpleQueue()
        self._listener = QueueListener(self._lines, handler)
        self._listener.start()

    def write(self, exchange: Exchange) -> None:
        line = json.dumps(exchange.line(with_content=self.with_content), ensure_ascii=False)
        self._lines.put(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._listener.stop()
        self._handler.close()
