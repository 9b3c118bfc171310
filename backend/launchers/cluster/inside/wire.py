"""The messages between the studio and its bridge to a Ray cluster: JSON, so that the studio unpickles no node's answer.

Standard library only: the bridge runs it under the ray environment.

Bytes are written as {"$bytes": base64}; tuples come back as lists.
"""

from __future__ import annotations

import base64
import binascii
import json
from multiprocessing.connection import Connection
from typing import Any

MOST_BYTES = 160 << 20
"""The most bytes of one message: the largest is a segment of events, 64 MiB, in base64."""
BYTES = "$bytes"


def send(pipe: Connection, *message: Any) -> None:
    """Send a message. Raises ValueError if a part of it is no JSON, OSError."""
    try:
        pipe.send_bytes(json.dumps(message, default=_as_json).encode())
    except TypeError as error:
        raise ValueError(str(error)) from None


def receive(pipe: Connection, length: int) -> list[Any]:
    """A message of so many parts. Raises EOFError, OSError, also where it is longer than MOST_BYTES; ValueError."""
    text = pipe.recv_bytes(MOST_BYTES)
    try:
        message = json.loads(text, object_hook=_as_bytes)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(message, list) or len(message) != length:
        raise ValueError(f"it has not {length} parts")
    return message


def _as_json(value: Any) -> dict[str, str]:
    if isinstance(value, bytes):
        return {BYTES: base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is no JSON")


def _as_bytes(document: dict[str, Any]) -> Any:
    content = document.get(BYTES)
    if len(document) != 1 or not isinstance(content, str):
        return document
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        raise ValueError("it has bytes that are no base64") from None
