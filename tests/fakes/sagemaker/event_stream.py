"""AWS's event stream as its services write it, by Smithy's specification; a test has botocore read it."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

CONTENT_TYPE = "application/vnd.amazon.eventstream"


def message(payload: bytes, **headers: str) -> bytes:
    """One message; `_` in a header's name stands for `-`, and each begins with a colon."""
    named = b""
    for name, value in headers.items():
        key, text = (":" + name.replace("_", "-")).encode(), value.encode()
        named += bytes([len(key)]) + key + b"\x07" + struct.pack(">H", len(text)) + text
    prelude = struct.pack(">II", 16 + len(named) + len(payload), len(named))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + named + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


def part(payload: bytes) -> bytes:
    return message(payload, event_type="PayloadPart", content_type="application/octet-stream", message_type="event")


def exception(kind: str, **document: Any) -> bytes:
    """`ModelStreamError` with Message and ErrorCode, `InternalStreamFailure` with Message."""
    body = json.dumps(document).encode()
    return message(body, exception_type=kind, content_type="application/json", message_type="exception")
