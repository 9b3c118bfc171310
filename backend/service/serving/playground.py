"""Answers streamed from an OpenAI-compatible endpoint, for looking at them; measuring is the load generator's work."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import endpoint
from backend.catalog.text import held_out
from backend.domain.errors import EndpointUnreachable, RequestError
from backend.endpoint import Address, models

__all__ = ["PromptTooLong", "Question", "Timing", "chats", "models", "stream"]

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


def chats(folder: str | Path | None) -> bool | None:
    """Whether the tokenizer in that folder brings a chat template; None where there is no folder to look into."""
    if folder is None or not Path(folder).is_dir():
        return None
    return held_out.has_template(Path(folder))


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
    place = endpoint.address(url)
    for options in USAGE:
        body = {**request, **({"stream_options": options} if options else {})}
        with endpoint.ask(place, "POST", place.path("completions"), body=body, limit_s=TIMEOUT_S) as answer:
            if answer.status == http.client.OK:
                yield from _events(place, answer)
                return
            said = endpoint.words(answer)
        if answer.status == 400 and (found := TOO_LONG.search(said)):
            context = next(group for group in found.groups() if group)
            raise PromptTooLong(
                f"The prompt and the answer do not fit into this model's context of {context} tokens: "
                "shorten the prompt, or ask for a shorter answer."
            )
        if answer.status not in {400, 422} or options is None:
            raise endpoint.refused(place, answer.status, said)


def _events(place: Address, answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, until `[DONE]` or its end after a reason to finish."""
    finished = seen = False
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
        raise EndpointUnreachable(f"{place} broke off its answer: {endpoint.reason(error)}.") from None
    if not seen:
        raise EndpointUnreachable(f"{place} answers, but not with a stream: it is no OpenAI-compatible endpoint.")
    if not finished:
        raise EndpointUnreachable(f"{place} broke off its answer: the connection was closed in the middle.")


def _is_last(document: dict[str, Any]) -> bool:
    """Whether a choice says why it ends. Raises EndpointUnreachable where the server tells of an error instead."""
    if error := document.get("error"):
        words = error.get("message") if isinstance(error, dict) else error
        raise EndpointUnreachable(f"The server broke off its answer: {str(words)[:200].rstrip('.')}.")
    return any(choice.get("finish_reason") for choice in document.get("choices") or ())
