"""Answers streamed from an OpenAI-compatible endpoint, for looking at them; measuring is the load generator's work."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from backend.domain.errors import EndpointUnreachable, RequestError

TIMEOUT_S = 60.0
LONGEST_LINE = 1_000_000
"""Bytes."""
TOO_LONG = re.compile(
    r"maximum context length(?: is|:)? (\d+)|max_model_len\D{0,20}(\d+)|longer than the maximum model length of (\d+)"
)
"""How vLLM and OpenAI say that prompt and answer do not fit, with the context in tokens."""
USAGE: tuple[dict[str, bool] | None, ...] = (
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    None,
)
"""Counts of tokens as the answer grows, else at its end, else none: the first that the server does not refuse."""


class PromptTooLong(RequestError):
    """The prompt and the answer do not fit into the model's context: shorten the prompt, or ask for fewer tokens."""


class RequestRefused(EndpointUnreachable):
    """The server does not take the request as it is, perhaps only for its stream options."""


@dataclass(frozen=True)
class Question:
    """What both are asked. Greedy at temperature 0; `seed` makes sampling repeatable where the server honours it."""

    prompt: str
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int | None = None


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


def stream(url: str, model: str, question: Question, timing: Timing) -> Iterator[str]:
    """The answer's pieces as they arrive; `timing` is filled meanwhile.

    Raises RequestError, PromptTooLong, EndpointUnreachable; also after some pieces, where the answer broke off.
    """
    began = time.monotonic()
    for document in _documents(url, _request(model, question)):
        timing.total_s = time.monotonic() - began
        usage, choices = document.get("usage"), document.get("choices") or ()
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            timing.tokens = usage["completion_tokens"]
        piece = str(choices[0].get("text") or "") if choices else ""
        if piece:
            timing.first_s = timing.first_s if timing.first_s is not None else timing.total_s
            yield piece


def _request(model: str, question: Question) -> dict[str, Any]:
    asked = {"prompt": question.prompt, "max_tokens": question.max_tokens, "temperature": question.temperature}
    seed = {} if question.seed is None else {"seed": question.seed}
    return {"model": model, **asked, **seed, "stream": True}


def _documents(url: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of the answer, asked with the first stream options that the server takes."""
    for options in USAGE:
        try:
            with _Connection(url) as connection:
                yield from connection.events("/completions", {**request, **({"stream_options": options} if options else {})})
            return
        except RequestRefused:
            if options is None:
                raise


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
            raise EndpointUnreachable(f"Nothing usable answers at {self._url}: {_why(error)}.") from None
        if answer.status != 200:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: http.client.HTTPResponse) -> EndpointUnreachable | PromptTooLong:
        said = _said(answer)
        if answer.status == 400 and (found := TOO_LONG.search(said)):
            context = next(group for group in found.groups() if group)
            return PromptTooLong(
                f"The prompt and the answer do not fit into this model's context of {context} tokens: "
                "shorten the prompt, or ask for a shorter answer."
            )
        kind = RequestRefused if answer.status in {400, 422} else EndpointUnreachable
        return kind(f"{self._url} answered with HTTP {answer.status}: {said}.")

    def json(self, method: str, path: str) -> Any:
        answer = self._answer(method, path)
        try:
            return json.loads(answer.read(LONGEST_LINE))
        except (OSError, ValueError, http.client.HTTPException):
            raise EndpointUnreachable(f"{self._url} answers, but not with JSON: it is no OpenAI-compatible endpoint.") from None

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON objects of a server-sent event stream, until `[DONE]` or its end after a reason to finish."""
        answer, finished, seen = self._answer("POST", path, body), False, False
        try:
            while line := answer.readline(LONGEST_LINE):
                data = line.decode(errors="replace").strip().removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if data.startswith("{"):
                    document = json.loads(data)
                    finished, seen = finished or _is_last(document), True
                    yield document
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise EndpointUnreachable(f"{self._url} broke off its answer: {_why(error)}.") from None
        if not seen:
            raise EndpointUnreachable(f"{self._url} answers, but not with a stream: it is no OpenAI-compatible endpoint.")
        if not finished:
            raise EndpointUnreachable(f"{self._url} broke off its answer: the connection was closed in the middle.")


def _is_last(document: dict[str, Any]) -> bool:
    """Whether a choice says why it ends. Raises EndpointUnreachable where the server tells of an error instead."""
    if error := document.get("error"):
        words = error.get("message") if isinstance(error, dict) else error
        raise EndpointUnreachable(f"The server broke off its answer: {str(words)[:200].rstrip('.')}.")
    return any(choice.get("finish_reason") for choice in document.get("choices") or ())


def _why(error: Exception) -> str:
    """`connection refused`, without the number that the system gives it."""
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:.0f} s"
    words = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return (words or type(error).__name__).rstrip(".").lower()


def _said(answer: http.client.HTTPResponse) -> str:
    """The server's own words: the message of an error document, else the beginning of whatever came."""
    try:
        body = answer.read(20_000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        body = ""
    try:
        document = json.loads(body)
        error = document.get("error", document)
        body = str(error.get("message") or body) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        pass
    return " ".join(body.split())[:300].rstrip(".") or "no reason given"
