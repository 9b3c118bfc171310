"""Bodies of Smithy's RPC v2 protocol, in which botocore speaks to CloudWatch (RFC 8949, the few kinds of item that it
needs)."""

from __future__ import annotations

import re
import struct
from datetime import datetime
from typing import Any

from botocore.parsers import RpcV2CBORParser

PATH = re.compile(r"/service/(?P<prefix>\w+)/operation/(?P<name>\w+)")
HEADERS = {"Content-Type": "application/cbor", "smithy-protocol": "rpc-v2-cbor"}


def read(body: bytes) -> Any:
    parser = RpcV2CBORParser()
    return parser.parse_data_item(parser.get_peekable_stream_from_bytes(body))


def write(value: Any) -> bytes:
    match value:
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return _head(0, value)
        case float():
            return b"\xfb" + struct.pack(">d", value)
        case datetime():
            return b"\xc1" + write(value.timestamp())
        case str():
            return _head(3, len(value.encode())) + value.encode()
        case list():
            return _head(4, len(value)) + b"".join(map(write, value))
        case dict():
            return _head(5, len(value)) + b"".join(write(key) + write(each) for key, each in value.items())
    raise AssertionError(f"the fake writes no {type(value).__name__}")


def _head(kind: int, size: int) -> bytes:
    return bytes([kind << 5 | 27]) + struct.pack(">Q", size)
