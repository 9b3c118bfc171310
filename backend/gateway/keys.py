"""Keys of clients: made once, known by their hash only, each with a limit of requests per minute.

Standard library and pydantic, since the command line imports it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus

from backend.domain.frozen import Frozen
from backend.gateway.refusals import Refusal

PREFIX = "sk-whetstone-"
"""Begins every key, so that logs and scanners of secrets know it as one."""
TOKEN_BYTES = 32
"""Random bytes in a key: too many to guess, so a plain hash of them is safe to store."""
WINDOW_S = 60.0


class ClientKey(Frozen):
    """A client's key. `digest`: SHA-256 of the token, in hex. `requests_per_minute`: None is no limit."""

    name: str
    digest: str
    requests_per_minute: int | None = None


def make_token() -> str:
    """Return a new token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest(token: str) -> str:
    """Return the SHA-256 of a token, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Allowance:
    """Counts the requests of one key: at most `limit` in any 60 seconds."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._times: deque[float] = deque(maxlen=limit)

    def take(self, now: float) -> float:
        """Count a request and return 0.0, or return the seconds until one is allowed. `now` is monotonic."""
        if len(self._times) == self.limit and (wait_s := self._times[0] + WINDOW_S - now) > 0:
            return wait_s
        self._times.append(now)
        return 0.0


class KeyRing:
    """The keys of all clients.

    `loopback_only`: only this machine reaches the gateway, and while there was never a key, none is needed.
    """

    def __init__(self, keys: Iterable[ClientKey] = (), *, loopback_only: bool) -> None:
        self._keys: tuple[ClientKey, ...] = ()
        self._allowances: dict[str, Allowance] = {}
        self._open = loopback_only
        self.replace(keys)

    @property
    def is_open(self) -> bool:
        """Tell whether requests need no key."""
        return self._open

    def replace(self, keys: Iterable[ClientKey]) -> None:
        """Take these keys from now on. What a key has used of its limit stays; the last key's removal opens nothing."""
        self._keys = tuple(keys)
        self._open = self._open and not self._keys
        limits = {key.name: key.requests_per_minute for key in self._keys if key.requests_per_minute is not None}
        before = self._allowances
        self._allowances = {
            name: before[name] if name in before and before[name].limit == limit else Allowance(limit)
            for name, limit in limits.items()
        }

    def identify(self, authorization: str | None) -> str:
        """Return the name of the key in an Authorization field, "" where none is needed. Raises Refusal (401)."""
        if self._open:
            return ""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized("This gateway needs a key: send it as `Authorization: Bearer KEY`.")
        # Every key is compared, each in constant time, so that the time taken tells nothing of them.
        sent, name = digest(token.strip()), None
        for key in self._keys:
            if hmac.compare_digest(sent, key.digest):
                name = key.name
        if name is None:
            raise _unauthorized("The gateway does not know this key: ask its owner for one.")
        return name

    def take(self, name: str, now: float) -> None:
        """Count a request of that key. Raises Refusal (429) with Retry-After beyond its limit."""
        allowance = self._allowances.get(name)
        wait_s = 0.0 if allowance is None else allowance.take(now)
        if allowance is not None and wait_s > 0:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"The key {name} may send {allowance.limit} requests per minute: try again in {math.ceil(wait_s)} s.",
                kind="rate_limited",
                code="rate_limit_exceeded",
                headers=[(b"retry-after", str(math.ceil(wait_s)).encode())],
            )


def _unauthorized(sentence: str) -> Refusal:
    return Refusal(
        HTTPStatus.UNAUTHORIZED,
        sentence,
        kind="unauthorized",
        code="invalid_api_key",
        headers=[(b"www-authenticate", b"Bearer")],
    )
