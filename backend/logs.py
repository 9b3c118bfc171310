"""The logs of supervisor and studio: one JSON object per line, without secrets, in a file that is rotated. Standard
library only.

`time` is UTC; every line has `level`, `process` and `message`; `event`, `job` and `attempt` if there is one, and
`trace` if an exception was not caught.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

FIELDS = ("event", "job", "attempt")
MOST_BYTES, MOST_FILES = 5_000_000, 4
"""The most bytes of one file, and the number of earlier files that remain."""
SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
SHORTEST = 6
"""Characters of a secret: a shorter value may be any word."""
SECRET_FORMS = re.compile(
    r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|(?<=[Bb]earer )[\w.~+/=-]+|\bhf_\w{8,}|\bsk-[\w-]{8,}|\bA[KS]IA[0-9A-Z]{12,}"
)
"""A user and password in an address, a bearer token, keys by their beginning."""
HIDDEN = "***"


def redact(text: str) -> str:
    """Return the text without what looks like a secret, and without the values of environment variables that are named
    like one."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST and SECRET_NAME.search(name):
            text = text.replace(value, HIDDEN)
    return SECRET_FORMS.sub(HIDDEN, text)


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        time_utc = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time_utc, "level": record.levelname.lower(), "process": record.process}
        line |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
        line["message"] = redact(record.getMessage())
        if record.exc_info:
            line["trace"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class RotatingLog(RotatingFileHandler):
    """A rotated file for the owner alone. If standard error goes to it, standard error follows into the new file."""

    def _open(self) -> Any:
        follows = _is_stderr(Path(self.baseFilename)) or getattr(self, "_follows", False)
        os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
        opened = super()._open()
        self._follows = follows
        if follows:
            os.dup2(opened.fileno(), 2)
        return opened


def _is_stderr(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), path.stat())
    except OSError:
        return False


def start_logging(path: Path, *, to_stderr: bool = True, most_bytes: int = MOST_BYTES) -> None:
    """Write this process's log to that file, and with `to_stderr` also to standard error if that is another place.
    Uncaught exceptions are logged too. A log that cannot be written stops nobody."""
    handlers: list[logging.Handler] = []
    try:
        handlers.append(RotatingLog(path, maxBytes=most_bytes, backupCount=MOST_FILES, encoding="utf-8"))
    except OSError as error:
        print(f"{path} cannot be written ({error.strerror}), so the log goes here.", file=sys.stderr)
    if not handlers or (to_stderr and not _is_stderr(path)):
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.raiseExceptions = False  # a full disk
    sys.excepthook = lambda kind, error, trace: logging.critical("%s", error, exc_info=(kind, error, trace))
    threading.excepthook = lambda caught: _uncaught(caught)


def _uncaught(caught: threading.ExceptHookArgs) -> None:
    if caught.exc_value is not None:
        logging.critical("%s", caught.exc_value, exc_info=(caught.exc_type, caught.exc_value, caught.exc_traceback))


def log_event(
    event: str, message: str, *, job: str | None = None, attempt: int | None = None, level: int = logging.INFO
) -> None:
    """Log one event in one line."""
    logging.log(level, "%s", message, extra={"event": event, "job": job, "attempt": attempt})
