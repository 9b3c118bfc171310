"""Answers streamed from an OpenAI-compatible endpoint, for looking at them; measuring is the load generator's work."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from backend.domain.errors import EndpointUnreachable, RequestError

TIMEOUT_S = 60.0
LONGEST_LINE = 1_000_000
"""Bytes."""


@dataclass
class Timing:
    """Of one answer, as this page saw it. `tokens` as the server counted them, None where it did not say."""

    first_s: float | None = None
    total_s: float | None = None
    tokens: int | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over the time after the first one."""
        if self.tokens is None or self.first_s is None or self.total_s is None or self.total_s <= self.first_s:
            return None
        return (self.tokens - 1) / (self.total_s - self.first_s) if self.tokens > 1 else None


def models(url: str) -> list[str]:
    """The models that the endpoint serves. Raises RequestError for what is no address, EndpointUnreachable."""
    with _Connection(url) as connection:
        document = connection.json("GET", "/models")
    entries = document.get("data") if isinstance(document, dict) else None
    found = [str(entry["id"]) for entry in entries or () if isinstance(entry, dict) and "id" in entry]
    if not found:
        raise EndpointUnreachable(f"{url} answers, but names no model: it is no OpenAI-compatible endpoint.")
    return found


def stream(url: str, model: str, prompt: str, *, max_tokens: int, temperature: float, timing: Timing) -> Iterator[str]:
    """The answer's pieces as they arrive; `timing` is filled meanwhile. Raises RequestError, EndpointUnreachable."""
    request = {
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    began = time.monotonic()
    with _Connection(url) as connection:
        for document in connection.events("/completions", request):
            timing.total_s = time.monotonic() - began
            usage, choices = document.get("usage"), document.get("choices") or ()
            if usage:
                timing.tokens = int(usage.get("completion_tokens", 0))
            piece = str(choices[0].get("text") or "") if choices else ""
            if piece:
                timing.first_s = timing.first_s if timing.first_s is not None else timing.total_s
                yield piece


class _Connection:
    """One request to one endpoint; every way it can fail is one sentence."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            raise RequestError(f"`{url}` is not an address: give http://HOST:PORT.") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise RequestError(f"`{url}` is not an address: give http://HOST:PORT.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url = url
        self._prefix = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._connection = kind(parts.hostname, port, timeout=TIMEOUT_S)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _answer(self, method: str, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
        try:
            content = json.dumps(body).encode() if body is not None else None
            self._connection.request(method, self._prefix + path, content, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EndpointUnreachable(f"Nothing usable answers at {self._url}: {error}.") from None
        if answer.status != 200:
            raise EndpointUnreachable(f"{self._url} answered with HTTP {answer.status}: {_short(answer)}.")
        return answer

    def json(self, method: str, path: str) -> Any:
        answer = self._answer(method, path)
        try:
            return json.loads(answer.read(LONGEST_LINE))
        except (OSError, ValueError, http.client.HTTPException):
            raise EndpointUnreachable(f"{self._url} answers, but not with JSON: it is no OpenAI-compatible endpoint.") from None

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON objects of a server-sent event stream, until `[DONE]` or its end."""
        answer = self._answer("POST", path, body)
        try:
            while line := answer.readline(LONGEST_LINE):
                data = line.decode(errors="replace").strip().removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if data.startswith("{"):
                    yield json.loads(data)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EndpointUnreachable(f"{self._url} broke off its answer: {error}.") from None


def _short(answer: http.client.HTTPResponse) -> str:
    words = " ".join(answer.read(2000).decode(errors="replace").split())
    return words[:200] or "no reason given"
