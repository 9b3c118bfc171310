"""A client of OpenAI-compatible endpoints: the address, single requests, and what the server's refusals mean. Standard
library, but for an endpoint of SageMaker (`sagemaker://REGION/NAME`), whose requests `aws.runtime` signs.

Knows nothing of load and of what is asked. Proxy settings are ignored: a proxy would be measured instead of the server.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from backend import served_keys, settings
from backend.address import SAGEMAKER, Address, connect, is_loopback
from backend.aws.runtime import Signer
from backend.domain.deploy.container import SERVED_NAME
from backend.domain.errors import EndpointUnreachable, RequestError
from backend.domain.load import openai_json, sagemaker_errors
from backend.domain.load.openai_json import LENGTH, NEWER_LENGTH, NotAnAnswer
from backend.settings import TOKEN_PREFIX

CONNECT_TIMEOUT_S = 5.0
ANSWER_S = 180.0
"""A server that has just started compiles kernels at its first prompt: over a minute where other work runs beside
it."""
WHOLE_S = 30.0
"""For a whole answer, whatever the waits in it: a server that sends a byte now and then would keep a client for
ever."""
METRICS_BYTES, ANSWER_BYTES = 8 * 2**20, 8 * 2**20
"""vLLM tells some tens of kilobytes of metrics, and half a megabyte of probabilities of a prompt."""
WORDS_BYTES = 20_000
"""Bytes read of a refusal."""
_newer_length: set[Address] = set()
"""Endpoints that want the limit of an answer under its newer name."""


def parse_address(url: str) -> Address:
    """Read `http[s]://host[:port][/prefix][/v1[/completions]]`, or `sagemaker://REGION/NAME`. Raises RequestError where
    it is no such URL; of SageMaker also what `aws.runtime.Signer` does."""
    # 1. Split the URL.
    wrong = RequestError(f"`{url}` is not an address: give http://HOST:PORT or https://HOST[:PORT].")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme == SAGEMAKER and parts.hostname:
        return _at_sagemaker(parts.hostname, parts.path.strip("/"))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise wrong
    # 2. Reduce the path to what stands before the endpoints, ending with /v1.
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions", "/models"):
        prefix = prefix.removesuffix(ending)
    if not prefix.endswith("/v1"):
        prefix += "/v1"
    return Address(parts.hostname, port or (443 if tls else 80), tls, parts.netloc.rpartition("@")[2], prefix)


def _at_sagemaker(region: str, name: str) -> Address:
    """Return the address that botocore gives for the region's runtime, so that no signature can be sent elsewhere."""
    base = urlsplit(signer(region).url)
    tls = base.scheme == "https"
    port = base.port or (443 if tls else 80)
    return Address(str(base.hostname), port, tls, base.netloc, f"/endpoints/{name}", region)


@cache
def signer(region: str) -> Signer:
    """Kept, since finding the credentials may take a second; `send` has it made anew where AWS refuses them."""
    return Signer(region)


def header_fields(address: Address, path: str, body: bytes, token: str | None = None) -> dict[str, str]:
    """Return the header fields of a JSON POST: with the token, or signed now (valid for some minutes)."""
    plain = {"Content-Type": "application/json"}
    if address.region is not None:
        return signer(address.region).headers(path, body, plain)
    return plain | ({"Authorization": f"Bearer {token}"} if token else {})


def key_file(address: Address) -> str | None:
    """Return the file with the key of a server that was started here, at an address of this machine; None where none
    was."""
    return str(served_keys.file(address.port)) if served_keys.find(address.port) is not None else None


def bearer(variable: str | None, address: Address) -> str | None:
    """The token in that environment variable, to be sent to `address`; None of SageMaker, which takes signatures. A
    server that was started here is given its own key, whatever the variable.

    Raises RequestError as `check_bearer` does, and where it is not set or cannot be a header.
    """
    # 1. A server that was started here has its own key.
    may_be_ours = address.region is None and not address.tls and is_loopback(address.host)
    own = served_keys.find(address.port) if may_be_ours else None
    if own is not None:
        return own
    # 2. Otherwise the token of the variable, if it may be sent there.
    check_bearer(variable, address)
    if variable is None or address.region is not None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise RequestError(
            f"The environment variable {variable} that should hold the bearer token is not set: export it."
        )
    if not token.isascii() or not token.isprintable():
        raise RequestError(f"The bearer token in {variable} has characters that no HTTP header may have: set it again.")
    return token


def check_bearer(variable: str | None, address: Address) -> None:
    """Before anything is sent. Raises RequestError for a variable that the owner did not name for this, and for plain
    HTTP to another machine, where anybody on the way reads along."""
    if variable is None or address.region is not None:
        return
    chosen = settings.load()
    if not chosen.may_send(variable, address.host):
        bound = chosen.shared or any(entry.startswith(f"{variable}@") for entry in chosen.bearer_env)
        instead = "" if bound else f"put the token into a variable called {TOKEN_PREFIX}..., or "
        raise RequestError(
            f"{variable} is not sent to {address.host if bound else 'an endpoint'}: {instead}list "
            f"{variable}{f'@{address.host}' if bound else ''} in WHETSTONE_BEARER_ENV, where `whetstone up` is started"
            f"{', since others reach this studio' if chosen.shared else ''}."
        )
    if not address.tls and not is_loopback(address.host):
        raise RequestError(
            f"The bearer token in {variable} would go to {address} unencrypted: give an https:// address."
        )


@contextmanager
def send(
    address: Address,
    method: str,
    path: str,
    *,
    body: Any = None,
    token: str | None = None,
    limit_s: float = CONNECT_TIMEOUT_S,
    whole_s: float = WHOLE_S,
) -> Iterator[http.client.HTTPResponse]:
    """The answer to one request, of whatever status, to be read inside.

    `limit_s` is for each wait for the server, `whole_s` for all of it: then the connection is cut.
    Raises EndpointUnreachable where no answer comes, or it breaks off or is cut while it is read.
    """
    # 1. A watchdog cuts the connection when the whole time is over.
    connection = _Connection(address, limit_s)
    watchdog = threading.Timer(whole_s, connection.cut)
    watchdog.daemon = True
    watchdog.start()
    # 2. Send the request, signed or with a bearer token.
    sent = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if sent is not None:
        headers = header_fields(address, path, sent, token)
    # 3. Yield the answer to be read; every failure becomes EndpointUnreachable.
    try:
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        if address.region is not None and answer.status in {400, 401, 403}:
            signer.cache_clear()  # other credentials may be there by now
        yield answer
        connection.check(whole_s)
    except EndpointUnreachable:
        connection.check(whole_s)
        raise
    except (OSError, http.client.HTTPException) as error:
        connection.check(whole_s)
        raise unreachable_error(address, error) from None
    finally:
        watchdog.cancel()
        connection.close()


def read(address: Address, answer: http.client.HTTPResponse, most: int = ANSWER_BYTES) -> bytes:
    """The body of an answer. Raises EndpointUnreachable where it has more than `most` bytes, OSError or
    HTTPException."""
    body = answer.read(most + 1)
    if len(body) > most:
        raise EndpointUnreachable(
            f"{address} answers with more than {most // 2**20} MiB: it is no OpenAI-compatible endpoint."
        )
    return body


def check_endpoint(url: str, bearer_env: str | None = None) -> None:
    """Connect once, and where a token is used, see that it is accepted.

    Raises EndpointUnreachable with one sentence, RequestError where the address or the token variable is wrong.
    """
    address = parse_address(url)
    token = bearer(bearer_env, address)
    if token is None:
        try:
            with closing(_Connection(address, CONNECT_TIMEOUT_S)) as connection:
                connection.connect()
        except OSError as error:
            raise unreachable_error(address, error) from None
        return
    with send(address, "GET", address.prefix + "/models", token=token) as answer:
        status = answer.status
    if status in {401, 403}:
        which = f"in {bearer_env}" if bearer_env else "of the server that Whetstone started there before"
        raise EndpointUnreachable(f"{address} refuses the bearer token {which} (HTTP {status}): set a valid one.")


def models(url: str, bearer_env: str | None = None) -> list[str]:
    """Ids that GET /v1/models lists, one at least. Raises EndpointUnreachable where nothing answers or no such list
    comes.

    SageMaker forwards no such request: there it is what our deployments call the model."""
    address = parse_address(url)
    if address.region is not None:
        return [SERVED_NAME]
    with send(address, "GET", address.prefix + "/models", token=bearer(bearer_env, address)) as answer:
        why = "" if answer.status == http.client.OK else f" It says HTTP {answer.status}: {refusal_words(answer)}."
        try:
            data = [] if why else openai_json.parse_object(read(address, answer), "the list of models").get("data")
        except NotAnAnswer:
            data = []
    rows = data if isinstance(data, list) else []
    listed = [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]
    if not listed:
        raise EndpointUnreachable(
            f"{address} answers, but not with a list of models at {address.prefix}/models: "
            f"name the model yourself ({{}} of a bench, URL#MODEL of an evaluation).{why}",
            "model",
        )
    return listed


def metrics(url: str, bearer_env: str | None = None) -> str | None:
    """Return what it tells of itself at `/metrics` beside `/v1`, as text; None where it tells nothing there, for
    whatever reason.

    Raises RequestError where the address or the token variable is wrong.
    """
    address = parse_address(url)
    if address.region is not None:
        return None
    token = bearer(bearer_env, address)
    try:
        with send(address, "GET", address.prefix.removesuffix("/v1") + "/metrics", token=token) as answer:
            return answer.read(METRICS_BYTES).decode("utf-8", "replace") if answer.status == http.client.OK else None
    except EndpointUnreachable:
        return None


def completion(
    url: str,
    body: dict[str, Any],
    bearer_env: str | None = None,
    kind: str = "completions",
    *,
    limit_s: float = ANSWER_S,
) -> dict[str, Any]:
    """The answer to one request of a `kind` of PATHS, not streamed, within `limit_s`.

    Raises EndpointUnreachable where none comes, RequestError as `metrics`.
    """
    address = parse_address(url)
    token = bearer(bearer_env, address)
    # 1. Send it, with the limit of the answer under the name that the endpoint takes.
    body = with_length_field(address, body)
    with send(address, "POST", address.path(kind), body=body, token=token, limit_s=limit_s, whole_s=limit_s) as answer:
        if answer.status == http.client.OK:
            try:
                return openai_json.parse_object(read(address, answer), "the answer")
            except NotAnAnswer as error:
                raise EndpointUnreachable(f"{address} answers, but {error}.") from None
        status, words = read_refusal(address, answer)
    # 2. Try again once if the endpoint wants the newer name.
    if not wants_newer_length(address, body, status, words):
        raise refusal_error(address, status, words)
    return completion(url, body, bearer_env, kind, limit_s=limit_s)


def with_length_field(address: Address, body: dict[str, Any]) -> dict[str, Any]:
    """The request with the limit of its answer under the name that the endpoint takes."""
    if address not in _newer_length or LENGTH not in body:
        return body
    return {NEWER_LENGTH if name == LENGTH else name: value for name, value in body.items()}


def wants_newer_length(address: Address, body: dict[str, Any], status: int, refusal_words: str) -> bool:
    """Return whether the refusal of a request wants the limit under its newer name: remembered, so that it can be asked
    again."""
    if LENGTH not in body or not openai_json.wants_newer_length(status, refusal_words):
        return False
    _newer_length.add(address)
    return True


def read_refusal(address: Address, answer: http.client.HTTPResponse) -> tuple[int, str]:
    """Read a refusal: its status (the container's own, if one at SageMaker refused) and its message."""
    try:
        body = answer.read(WORDS_BYTES)
    except (OSError, http.client.HTTPException):
        body = b""
    status = sagemaker_errors.container_status(answer.status, body)
    if address.region is None or status != answer.status:
        return status, _message(sagemaker_errors.container_body(body))
    names = {name.lower(): value for name, value in answer.getheaders()}
    return status, sagemaker_errors.describe_refusal(status, names, body).rstrip(".")


def refusal_words(answer: http.client.HTTPResponse) -> str:
    """The server's own words: the message of an error document, else the beginning of whatever came."""
    try:
        return _message(answer.read(WORDS_BYTES))
    except (OSError, http.client.HTTPException):
        return _message(b"")


def _message(body: bytes) -> str:
    return openai_json.server_message(body).rstrip(".") or "no reason given"


def refusal_error(address: Address, status: int, words: str) -> EndpointUnreachable:
    """Make the error for an answer whose status is not 200."""
    return EndpointUnreachable(f"{address} answered with HTTP {status}: {words}.")


def unreachable_error(address: Address, error: BaseException) -> EndpointUnreachable:
    """Make the error that says what happened at that address and what to do next."""
    return EndpointUnreachable(
        f"{address} cannot be reached ({reason(error)}): check that the server is running and the port is right."
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
    """To addresses that were looked at. `cut` ends it from another thread, whatever it waits for."""

    def __init__(self, address: Address, limit_s: float) -> None:
        super().__init__(address.host, address.port, timeout=limit_s)
        self._address, self._limit_s = address, limit_s
        self._open_socket: socket.socket | None = None
        """Its socket, also where the answer has taken it over (`Connection: close`)."""
        self._is_cut = False
        self.default_port = http.client.HTTPS_PORT if address.tls else http.client.HTTP_PORT

    def cut(self) -> None:
        """End the connection: whoever reads sees its end, also in the middle of a body."""
        self._is_cut = True
        if self._open_socket is not None:
            with suppress(OSError):
                # not SSLSocket's, which pulls TLS from under a reader
                socket.socket.shutdown(self._open_socket, socket.SHUT_RDWR)

    def check(self, whole_s: float) -> None:
        """Raise EndpointUnreachable where it was cut."""
        if self._is_cut:
            raise EndpointUnreachable(f"{self._address} did not end its answer within {whole_s:g} s: check the server.")

    def connect(self) -> None:
        connection = self._open_socket = connect(self._address, self._limit_s)
        if self._is_cut:
            connection.close()
            raise TimeoutError
        try:
            if self._address.tls:
                connection = self._open_socket = ssl.create_default_context().wrap_socket(
                    connection, server_hostname=self.host
                )
            self.sock = connection
        except OSError:
            connection.close()
            raise
