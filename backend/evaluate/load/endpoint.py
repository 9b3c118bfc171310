"""An endpoint's address and what can be asked of it before a run: does it answer, which models has it.

Knows nothing of load. Proxy settings are ignored: a proxy would be measured instead of the server.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from backend.domain.errors import EndpointUnreachable, RequestError

CONNECT_TIMEOUT_S = 5.0
ANSWER_S = 60.0
METRICS_BYTES, ANSWER_BYTES = 8 * 2**20, 2**20
"""vLLM tells some tens of kilobytes."""
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
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise RequestError(f"The port of {url} is not a number up to 65535: correct the address.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise RequestError(f"{url} is not an address: give http://HOST:PORT or https://HOST[:PORT].")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions", "/models"):
        prefix = prefix.removesuffix(ending)
    if not prefix.endswith("/v1"):
        prefix += "/v1"
    return Address(parts.hostname, port or (443 if tls else 80), tls, parts.netloc.rpartition("@")[2], prefix)


def bearer(variable: str | None) -> str | None:
    """The token in that environment variable. Raises RequestError where it is not set or cannot be a header."""
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise RequestError(f"The environment variable {variable} that should hold the bearer token is not set: export it.")
    if not token.isascii() or not token.isprintable():
        raise RequestError(f"The bearer token in {variable} has characters that no HTTP header may have: set it again.")
    return token


def check_endpoint(url: str, bearer_env: str | None = None) -> None:
    """Connect once, and where a token is used, see that it is accepted.

    Raises EndpointUnreachable with one sentence, RequestError where the address or the token variable is wrong.
    """
    place, token = address(url), bearer(bearer_env)
    connection = _connection(place)
    try:
        connection.connect()
        if token is not None:
            _refused_token(place, connection, token, bearer_env)
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(place, error) from None
    finally:
        connection.close()


def models(url: str, bearer_env: str | None = None) -> list[str]:
    """Ids that GET /v1/models lists. Raises EndpointUnreachable where nothing answers or the answer is not such a list."""
    place = address(url)
    connection = _connection(place)
    try:
        connection.request("GET", place.prefix + "/models", headers=_headers(bearer(bearer_env)))
        answer = connection.getresponse()
        document = json.loads(answer.read())
        return [str(model["id"]) for model in document["data"]]
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(place, error) from None
    except (ValueError, TypeError, KeyError):
        raise EndpointUnreachable(
            f"{place} answers, but not with a list of models at {place.prefix}/models: "
            "name the model yourself ({} of a bench, URL#MODEL of an evaluation).",
            "model",
        ) from None
    finally:
        connection.close()


def metrics(url: str, bearer_env: str | None = None) -> str | None:
    """What it tells of itself at `/metrics` beside `/v1`, as text; None where it tells nothing there, for whatever reason.

    Raises RequestError where the address or the token variable is wrong.
    """
    place, token = address(url), bearer(bearer_env)
    connection = _connection(place)
    try:
        connection.request("GET", place.prefix.removesuffix("/v1") + "/metrics", headers=_headers(token))
        answer = connection.getresponse()
        return answer.read(METRICS_BYTES).decode("utf-8", "replace") if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def completion(url: str, body: dict[str, Any], bearer_env: str | None = None) -> dict[str, Any]:
    """The answer to one completion, not streamed. Raises EndpointUnreachable where none comes, RequestError as `metrics`."""
    place, token = address(url), bearer(bearer_env)
    connection = _connection(place, ANSWER_S)
    try:
        headers = {"Content-Type": "application/json", **_headers(token)}
        connection.request("POST", place.path("completions"), json.dumps(body), headers)
        answer = connection.getresponse()
        told = answer.read(ANSWER_BYTES)
        if answer.status != http.client.OK:
            said = " ".join(told.decode("utf-8", "replace").split())[:200]
            raise EndpointUnreachable(f"{place} answers HTTP {answer.status} ({said}).")
        document = json.loads(told)
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(place, error) from None
    except ValueError:
        raise EndpointUnreachable(f"{place} answers, but not in JSON.") from None
    finally:
        connection.close()
    return document if isinstance(document, dict) else {}


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


def _connection(place: Address, limit_s: float = CONNECT_TIMEOUT_S) -> http.client.HTTPConnection:
    if place.tls:
        return http.client.HTTPSConnection(place.host, place.port, timeout=limit_s)
    return http.client.HTTPConnection(place.host, place.port, timeout=limit_s)


def _headers(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _refused_token(place: Address, connection: http.client.HTTPConnection, token: str, variable: str | None) -> None:
    connection.request("GET", place.prefix + "/models", headers=_headers(token))
    status = connection.getresponse().status
    if status in {401, 403}:
        raise EndpointUnreachable(f"{place} refuses the bearer token in {variable} (HTTP {status}): set a valid one.")
