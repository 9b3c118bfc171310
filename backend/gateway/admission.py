"""Admits requests: by their key, or where none is needed, only those of programs on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

from backend.address import is_loopback
from backend.gateway.keys import KeyRing
from backend.gateway.refusals import Refusal


def identify(keys: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the name of the request's key, "" where none is needed.

    Raises Refusal: 401 without a known key; 403 where no key is needed and a page of another site may have sent the
    request, in this machine's browser (its own name for this address, or an Origin).
    """
    authorization, host, origins = None, "", list[str]()
    for name, value in headers:
        if name == b"authorization":
            authorization = value.decode("latin-1")
        elif name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origins.append(value.decode("latin-1"))
    if keys.is_open and not (is_local(f"//{host}") and all(map(is_local, origins))):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            "Without keys this gateway answers only programs that call it localhost or 127.0.0.1: add a key.",
            kind="foreign_page",
        )
    return keys.identify(authorization)


def is_local(address: str) -> bool:
    """Tell whether an address, such as `//localhost:8600` or `http://127.0.0.1`, names this machine."""
    try:
        host = urlsplit(address).hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)
