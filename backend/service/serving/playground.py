"""Answers streamed from an OpenAI-compatible endpoint, for looking at them; measuring is the load generator's work."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import endpoint
from backend.address import Address
from backend.catalog.text import held_out_text
from backend.domain.errors import EndpointUnreachable, RequestError
from backend.domain.load import aws_event_stream, openai_json, sagemaker_errors
from backend.domain.load.openai_json import AnswerChunk, NotAnAnswer, ServerReportedError
from backend.domain.load.server_events import DONE, parse_server_events
from backend.domain.roles import Action
from backend.endpoint import models
from backend.service.workspace import Workspace

__all__ = ["PromptTooLong", "Question", "Timing", "find_model_name", "has_chat_template", "models", "stream"]

TIMEOUT_S, WHOLE_S = 60.0, 900.0
"""For each wait for the server, and for a whole answer."""
LONGEST_LINE, LONGEST_STREAM = 1_000_000, 32 * 2**20
"""Bytes. The longest answer that can be asked for has 32,768 tokens; a token with its running count takes about 300."""
TOO_LONG = re.compile(
    r"maximum context length(?: is|:)? (\d+)|max_model_len\D{0,20}(\d+)|longer than the maximum model length of (\d+)"
)
"""The error of vLLM and OpenAI for a prompt that does not fit, with the context in tokens."""
USAGE: tuple[dict[str, bool] | None, ...] = (
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    None,
)
"""Counts of tokens as the answer grows, else at its end, else none: the first that the server does not refuse."""


NO_CHAT = (404, 405, 501)
"""Status codes of a server without a chat path; a server whose model has no template sends a message."""


class PromptTooLong(RequestError):
    """The prompt and the answer do not fit into the model's context: shorten the prompt, or ask for fewer tokens."""


@dataclass(frozen=True)
class Question:
    """The question for both variants. Temperature 0 is greedy; `seed` makes sampling repeatable if the server supports
    it.

    `chat` puts the model's own template around it, where the server has one; else the text is continued.
    """

    prompt: str
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int | None = None
    chat: bool = False


@dataclass
class Timing:
    """Timing of one answer as the page saw it. `tokens` is the server's count, None if it sent none."""

    first_s: float | None = None
    total_s: float | None = None
    tokens: int | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over the time after the first one."""
        if self.tokens is None or self.first_s is None or self.total_s is None or self.total_s <= self.first_s:
            return None
        return (self.tokens - 1) / (self.total_s - self.first_s) if self.tokens > 1 else None


def has_chat_template(folder: str | Path | None) -> bool | None:
    """Tell whether the tokenizer in that folder has a chat template; None without a folder."""
    if folder is None or not Path(folder).is_dir():
        return None
    return held_out_text.has_template(Path(folder))


def find_model_name(workspace: Workspace, url: str, served_name: str | None) -> str:
    """Return the model name to request at an endpoint: the known one, else the first that it lists. Raises NotAllowed,
    and as `models`."""
    workspace.check(Action.ASK)
    return served_name or models(url)[0]


def stream(
    url: str, model: str, question: Question, timing: Timing, before: Sequence[tuple[str, str]] = ()
) -> Iterator[str]:
    """The answer's pieces as they arrive; `timing` is filled meanwhile. `before` are the questions and answers of this
    talk so far. A server without chat, or a model without a template, is given the prompt to continue.

    Raises RequestError, PromptTooLong, EndpointUnreachable; also after some pieces, where the answer broke off.
    """
    began = time.monotonic()
    for chunk in _chunks(url, _request(model, question), before if question.chat else None):
        timing.total_s = time.monotonic() - began
        # The server's count of tokens comes with the last piece.
        if chunk.usage is not None and chunk.usage.output_tokens is not None:
            timing.tokens = chunk.usage.output_tokens
        # The first piece with words is the first token.
        if chunk.words:
            timing.first_s = timing.first_s if timing.first_s is not None else timing.total_s
            yield chunk.words


def _request(model: str, question: Question) -> dict[str, Any]:
    fields = {"prompt": question.prompt, "max_tokens": question.max_tokens, "temperature": question.temperature}
    seed = {} if question.seed is None else {"seed": question.seed}
    return {"model": model, **fields, **seed, "stream": True}


def _talk(request: dict[str, Any], before: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The request with its prompt as the last message of the talk."""
    messages = [
        {"role": role, "content": text}
        for turn in before
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    fields = {name: value for name, value in request.items() if name != "prompt"}
    return {**fields, "messages": [*messages, {"role": "user", "content": request["prompt"]}]}


def _chunks(url: str, request: dict[str, Any], before: Sequence[tuple[str, str]] | None) -> Iterator[AnswerChunk]:
    """The events of the answer, asked with the first stream options that the server takes; `before` is None where
    nothing is to be put around the prompt."""
    # 1. Try the stream options in turn.
    place = endpoint.parse_address(url)
    token = endpoint.bearer(None, place)
    for options in USAGE:
        more = {"stream_options": options} if options else {}
        path, written = ("completions", request) if before is None else ("chat", _talk(request, before))
        body, target = endpoint.with_length_field(place, {**written, **more}), place.path(path, streamed=True)
        with endpoint.send(place, "POST", target, body=body, token=token, limit_s=TIMEOUT_S, whole_s=WHOLE_S) as answer:
            if answer.status == http.client.OK:
                yield from _events(place, answer)
                return
            status, refusal = endpoint.read_refusal(place, answer)
        # 2. Retry as a plain completion if the server has no chat.
        if before is not None and (status in NO_CHAT or "chat template" in refusal.lower()):
            yield from _chunks(url, request, None)
            return
        # 3. Retry with the newer name of the length field.
        if endpoint.wants_newer_length(place, body, status, refusal):
            yield from _chunks(url, request, before)
            return
        # 4. Raise what no other option would cure.
        if status == 400 and (match := TOO_LONG.search(refusal)):
            context = next(group for group in match.groups() if group)
            raise PromptTooLong(
                f"The prompt and the answer do not fit into this model's context of {context} tokens: "
                "shorten the prompt, or ask for a shorter answer."
            )
        if status not in {400, 422} or options is None or (place.region and status == answer.status):
            raise endpoint.refusal_error(place, status, refusal)


def _events(place: Address, answer: http.client.HTTPResponse) -> Iterator[AnswerChunk]:
    """The chunks of a server-sent event stream, until `[DONE]` or its end after a reason to finish."""
    # 1. Yield the chunks.
    finished = has_event = False
    try:
        for name, data in _named_data(place, answer):
            if data.strip() == DONE:
                return
            chunk = openai_json.parse_event(data, name)
            if chunk is not None:
                finished, has_event = finished or chunk.finish_reason is not None, True
                yield chunk
    except ServerReportedError as error:
        raise EndpointUnreachable(f"The server broke off its answer: {str(error).rstrip('.')}.") from None
    except NotAnAnswer as error:
        raise EndpointUnreachable(f"{place} broke off its answer: {str(error).rstrip('.')}.") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise EndpointUnreachable(f"{place} broke off its answer: {endpoint.reason(error)}.") from None
    # 2. Refuse a stream that is empty or broken off.
    if not has_event:
        raise EndpointUnreachable(f"{place} answers, but not with a stream: it is no OpenAI-compatible endpoint.")
    if not finished:
        raise EndpointUnreachable(f"{place} broke off its answer: the connection was closed in the middle.")


def _named_data(place: Address, answer: http.client.HTTPResponse) -> Iterator[tuple[str, bytes]]:
    """(name, data) of each event."""
    for block in _blocks(place, answer):
        yield from ((name, data) for name, data, _ in parse_server_events(block))


def _blocks(place: Address, answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The lines of each event, up to its blank line. Raises EndpointUnreachable where the stream or an event is too
    long."""
    block, size = b"", 0
    for line in _lines(answer):
        block, size = block + line, size + len(line)
        if size > LONGEST_STREAM or len(block) > LONGEST_LINE:
            raise EndpointUnreachable(f"{place} sends an answer without end: check the server.")
        if not line.strip():
            yield block
            block = b""
    yield block


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Also of AWS's event stream, whose messages may end in the middle of a line. Raises EndpointUnreachable where it
    says why it ends, ValueError where it is none."""
    if answer.headers.get_content_type() != aws_event_stream.CONTENT_TYPE:
        while line := answer.readline(LONGEST_LINE):
            yield line
        return
    rest = b""
    for message in aws_event_stream.read_messages(answer.read):
        if message.failure:
            raise EndpointUnreachable(sagemaker_errors.broken_answer(*message.failure))
        *whole, rest = (rest + message.payload).split(b"\n")
        yield from (line + b"\n" for line in whole)
    yield rest
