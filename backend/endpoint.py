"""A client of OpenAI-compatible endpoints: the address, single requests, and what the server's refusals mean. Standard library.

Knows nothing of load and of what is asked. Proxy settings are ignored: a proxy would be measured instead of the server.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from backend import settings
from backend.domain.errors import EndpointUnreachable, RequestError
from backend.settings import TOKEN_PREFIX

CONNECT_TIMEOUT_S = 5.0
ANSWER_S = 180.0
"""A server that has just started compiles kernels at its first prompt: over a minute where other work runs beside it."""
METRICS_BYTES, ANSWER_BYTES = 8 * 2**20, 2**20
"""vLLM tells some tens of kilobytes of metrics."""
WORDS_BYTES, MOST_WORDS = 20_000, 300
"""Of a refusal: what is read, and the characters that are passed on."""
NAT64 = ip_network("64:ff9b::/96")
"""Addresses of version 4 as they are reached from a network of version 6 (RFC 6052)."""
PATHS = {"completions": "/completions", "chat": "/chat/completions"}


class Address(NamedTuple):
    """Where to connect and what to write into the request. `prefix` is the path up to and with `/v1`."""

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str

    def path(self, endpoint: str) -> str:
        return self.prefix + PATHS[endpoint]

    @property
    def base(self) -> str:
        """What clients of the API call the base URL: up to and with `/v1`."""
        return f"{self}{self.prefix}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


def address(url: str) -> Address:
    """Read `http[s]://host[:port][/prefix][/v1[/completions]]`. Raises RequestError where it is no such URL."""
    wrong = RequestError(f"`{url}` is not an address: give http://HOST:PORT or https://HOST[:PORT].")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise wrong
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions", "/models"):
        prefix = prefix.removesuffix(ending)
    if not prefix.endswith("/v1"):
        prefix += "/v1"
    return Address(parts.hostname, port or (443 if tls else 80), tls, parts.netloc.rpartition("@")[2], prefix)


def bearer(variable: str | None, place: Address) -> str | None:
    """The token in that environment variable, to be sent to `place`.

    Raises RequestError as `check_bearer` does, and where it is not set or cannot be a header.
    """
    check_bearer(variable, place)
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise RequestError(f"The environment variable {variable} that should hold the bearer token is not set: export it.")
    if not token.isascii() or not token.isprintable():
        raise RequestError(f"The bearer token in {variable} has characters that no HTTP header may have: set it again.")
    return token


def check_bearer(variable: str | None, place: Address) -> None:
    """Before anything is sent. Raises RequestError for a variable that the owner did not name for this, and for plain HTTP to
    another machine, where anybody on the way reads along."""
    if variable is None:
        return
    if not settings.load().may_send(variable):
        raise RequestError(
            f"{variable} is not sent to an endpoint: put the token into a variable called {TOKEN_PREFIX}..., or list "
            f"{variable} in WHETSTONE_BEARER_ENV, where `whetstone up` is started."
        )
    if not place.tls and not is_loopback(place.host):
        raise RequestError(f"The bearer token in {variable} would go to {place} unencrypted: give an https:// address.")


def check_public(place: Address) -> None:
    """Before a person's endpoint is asked for the first time: raises RequestError as `resolved` does, also for an address
    that was written as such; a name that is not known today is left to the run."""
    with suppress(OSError):
        _found(place, literal=True)


def resolved(place: Address) -> list[tuple[Any, ...]]:
    """What `socket.getaddrinfo` says of it now, to be connected to as it is: each was looked at, and no name is asked twice.

    Raises OSError where it is unknown; RequestError where others reach the studio and one of its addresses is not for all the
    world: a cloud's metadata, this machine, its network. An address that was written as such was looked at when it was
    named, so that servers which are started here can be measured.
    """
    return _found(place, literal=False)


def _found(place: Address, *, literal: bool) -> list[tuple[Any, ...]]:
    try:
        found: list[tuple[Any, ...]] = list(socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM))
    except UnicodeError as error:
        raise socket.gaierror(str(error)) from None
    chosen = settings.load()
    if chosen.shared and (literal or not _is_literal(place.host)) and place.host.lower() not in chosen.allowed_addresses:
        for entry in found:
            if not _is_public(str(entry[4][0]), chosen.allowed_addresses):
                raise RequestError(
                    f"{place} is an address of this machine or its network, and others reach this studio: its owner lists "
                    f"{place.host} in WHETSTONE_ALLOWED_ADDRESSES if it may be asked."
                )
    return found


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_public(written: str, allowed: Iterable[str]) -> bool:
    """Whether the address, and the one of version 4 that it may stand for, is for all the world or listed."""
    found = ip_address(written.partition("%")[0])
    if any(found in network for network in _networks(allowed)):
        return True
    inner: list[IPv4Address | None] = []
    if isinstance(found, IPv6Address):
        inner = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
        inner += [IPv4Address(int(found) & 0xFFFFFFFF)] if found in NAT64 else []
    return all(each.is_global and not each.is_multicast for each in (found, *filter(None, inner)))


def _networks(allowed: Iterable[str]) -> Iterator[IPv4Network | IPv6Network]:
    for each in allowed:
        with suppress(ValueError):
            yield ip_network(each, strict=False)


def connect(place: Address, limit_s: float) -> socket.socket:
    """A connection to the first of its addresses that takes one. Raises OSError, RequestError as `resolved`."""
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, where in resolved(place):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(limit_s)
            made.connect(where)
        except OSError as error:
            made.close()
            failure = error
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
    raise failure


def is_loopback(host: str) -> bool:
    """By its name or number; nothing is looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


@contextmanager
def ask(
    place: Address, method: str, path: str, *, body: Any = None, token: str | None = None, limit_s: float = CONNECT_TIMEOUT_S
) -> Iterator[http.client.HTTPResponse]:
    """The answer to one request, of whatever status, to be read inside. `limit_s` is of each wait for the server.

    Raises EndpointUnreachable where none comes, or it breaks off while it is read.
    """
    connection = _Connection(place, limit_s)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        yield connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(place, error) from None
    finally:
        connection.close()


def check_endpoint(url: str, bearer_env: str | None = None) -> None:
    """Connect once, and where a token is used, see that it is accepted.

    Raises EndpointUnreachable with one sentence, RequestError where the address or the token variable is wrong.
    """
    place = address(url)
    token = bearer(bearer_env, place)
    if token is None:
        try:
            with closing(_Connection(place, CONNECT_TIMEOUT_S)) as connection:
                connection.connect()
        except OSError as error:
            raise unreachable(place, error) from None
        return
    with ask(place, "GET", place.prefix + "/models", token=token) as answer:
        status = answer.status
    if status in {401, 403}:
        raise EndpointUnreachable(f"{place} refuses the bearer token in {bearer_env} (HTTP {status}): set a valid one.")


def models(url: str, bearer_env: str | None = None) -> list[str]:
    """Ids that GET /v1/models lists, one at least. Raises EndpointUnreachable where nothing answers or no such list comes."""
    place = address(url)
    with ask(place, "GET", place.prefix + "/models", token=bearer(bearer_env, place)) as answer:
        why = "" if answer.status == http.client.OK else f" It says HTTP {answer.status}: {words(answer)}."
        try:
            listed = [] if why else [str(model["id"]) for model in json.loads(answer.read())["data"]]
        except (ValueError, TypeError, KeyError):
            listed = []
    if not listed:
        raise EndpointUnreachable(
            f"{place} answers, but not with a list of models at {place.prefix}/models: "
            f"name the model yourself ({{}} of a bench, URL#MODEL of an evaluation).{why}",
            "model",
        )
    return listed


def metrics(url: str, bearer_env: str | None = None) -> str | None:
    """What it tells of itself at `/metrics` beside `/v1`, as text; None where it tells nothing there, for whatever reason.

    Raises RequestError where the address or the token variable is wrong.
    """
    place = address(url)
    token = bearer(bearer_env, place)
    try:
        with ask(place, "GET", place.prefix.removesuffix("/v1") + "/metrics", token=token) as answer:
            return answer.read(METRICS_BYTES).decode("utf-8", "replace") if answer.status == http.client.OK else None
    except EndpointUnreachable:
        return None


def completion(url: str, body: dict[str, Any], bearer_env: str | None = None, kind: str = "completions") -> dict[str, Any]:
    """The answer to one request of a `kind` of PATHS, not streamed.

    Raises EndpointUnreachable where none comes, RequestError as `metrics`.
    """
    place = address(url)
    token = bearer(bearer_env, place)
    with ask(place, "POST", place.path(kind), body=body, token=token, limit_s=ANSWER_S) as answer:
        if answer.status != http.client.OK:
            raise refused(place, answer.status, words(answer))
        try:
            document = json.loads(answer.read(ANSWER_BYTES))
        except ValueError:
            raise EndpointUnreachable(f"{place} answers, but not in JSON.") from None
    return document if isinstance(document, dict) else {}


def words(answer: http.client.HTTPResponse) -> str:
    """The server's own words: the message of an error document, else the beginning of whatever came."""
    try:
        body = answer.read(WORDS_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        body = ""
    try:
        document = json.loads(body)
        error = document.get("error", document)
        body = str(error.get("message") or body) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        pass
    return " ".join(body.split())[:MOST_WORDS].rstrip(".") or "no reason given"


def refused(place: Address, status: int, said: str) -> EndpointUnreachable:
    """One sentence for an answer of another status than 200."""
    return EndpointUnreachable(f"{place} answered with HTTP {status}: {said}.")


def unreachable(place: Address, error: BaseException) -> EndpointUnreachable:
    """One sentence: what happened at that address and what to do next."""
    return EndpointUnreachable(
        f"{place} cannot be reached ({reason(error)}): check that the server is running and the port is right."
    )


def reason(error: BaseException) -> str:
    """An I/O error in a few words."""
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
            return "connection reset"
        case TimeoutError():
            return "no answer in time"
        case socket.gaierror():
            return "unknown host"
        case ssl.SSLError():
            return f"TLS: {error.reason or error}"
        case OSError(strerror=str(text)):
            return text.lower()
        case _:
            return str(error) or type(error).__name__


class _Connection(http.client.HTTPConnection):
    """To addresses that were looked at."""

    def __init__(self, place: Address, limit_s: float) -> None:
        super().__init__(place.host, place.port, timeout=limit_s)
        self._place, self._limit_s = place, limit_s
        self.default_port = http.client.HTTPS_PORT if place.tls else http.client.HTTP_PORT

    def connect(self) -> None:
        made = connect(self._place, self._limit_s)
        try:
            self.sock = ssl.create_default_context().wrap_socket(made, server_hostname=self.host) if self._place.tls else made
        except OSError:
            made.close()
            raise
