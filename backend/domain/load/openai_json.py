"""The JSON of OpenAI-compatible servers, read as it really comes: chunks of a stream, whole answers, usage, errors.
Pure.

One reader for measuring, the playground and single requests. It raises `NotAnAnswer` or `ServerReportedError`, each
with one sentence, and nothing else, whatever the bytes are. Fields as of OpenAI's API reference (chat and completions,
2026), vLLM 0.32, SGLang, llama.cpp, Moonshot (usage inside a choice) and Groq (usage inside `x_groq`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from backend.domain.load.server_events import ERROR

EXCERPT_LENGTH, MESSAGE_LENGTH = 120, 300
"""Characters that are quoted of an answer that cannot be read, and of a server's own message."""
LARGEST_COUNT = 2**53
"""A token count above it is no count; it would not fit into a float either."""
LENGTH, NEWER_LENGTH = "max_tokens", "max_completion_tokens"
"""The field that limits an answer, and its name at servers that refuse the older one (OpenAI, since its reasoning
models)."""
NESTED_MESSAGES = 5
"""Depth to which an error document is searched for its message."""


class NotAnAnswer(ValueError):
    """The bytes are not what the interface promises. The message says what they are."""


class ServerReportedError(ValueError):
    """The server reports an error. The message is its own sentence."""


class Usage(NamedTuple):
    """Token counts as the server gives them; None where it does not."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None


class AnswerChunk(NamedTuple):
    """One event of a stream, or one whole answer."""

    words: str
    """Text of the assistant: the part that goes into the next turn of a conversation."""
    reasoning: str
    calls: str
    """Names and arguments of the tools that it calls."""
    finish_reason: str | None
    usage: Usage | None

    @property
    def content(self) -> str:
        """All that was generated."""
        return self.reasoning + self.words + self.calls


def parse_object(data: bytes, what: str = "an event") -> dict[str, Any]:
    """Read a JSON object. Raises NotAnAnswer; `what` is what the sentence calls it."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise NotAnAnswer(f"{what} is not JSON: {excerpt(data)}") from None
    if not isinstance(document, dict):
        raise NotAnAnswer(f"{what} is not a JSON object: {excerpt(data)}")
    return document


def parse_event(data: bytes, name: str = "") -> AnswerChunk | None:
    """Read the data of one event of a stream, or of a whole answer. Returns and raises as `read_chunk`."""
    if name == ERROR and not data.lstrip().startswith(b"{"):
        raise ServerReportedError(server_message(data))
    return parse_chunk(parse_object(data), name)


def parse_chunk(document: dict[str, Any], event_name: str = "") -> AnswerChunk | None:
    """Read one event; None where it only keeps the connection open or tells something beside the answer.

    Raises ServerReportedError, NotAnAnswer.
    """
    # 1. Events that are no part of an answer.
    if event_name == "ping" or document.get("type") == "ping":
        return None
    if document.get("error") or event_name == ERROR:
        raise ServerReportedError(_message_of(document) or excerpt_of(document))
    if "choices" not in document and "usage" not in document:
        _check_without_choices(document, event_name)
        return None
    choices = document.get("choices")
    if choices is not None and not isinstance(choices, list):
        raise NotAnAnswer(f"choices is not a list: {excerpt_of(document)}")
    # 2. The texts of all choices.
    words = reasoning = calls = ""
    finish_reason = None
    usage = document.get("usage")
    for choice in choices or ():
        if not isinstance(choice, dict):
            raise NotAnAnswer("a choice is not a JSON object")
        reason = choice.get("finish_reason")
        finish_reason = reason if reason and isinstance(reason, str) else finish_reason
        usage = usage or choice.get("usage")
        holder = choice.get("delta") or choice.get("message") or choice
        if isinstance(holder, dict):
            thoughts, text = _content(holder)
            words, reasoning = words + text, reasoning + thoughts
            if "tool_calls" in holder or "function_call" in holder:
                calls += "".join(_calls(holder))
    # 3. Token counts, which Groq writes elsewhere.
    if not usage and isinstance(document.get("x_groq"), dict):
        usage = document["x_groq"].get("usage")
    return AnswerChunk(words, reasoning, calls, finish_reason, parse_usage(usage) if usage else None)


def _check_without_choices(document: dict[str, Any], event_name: str) -> None:
    """Accept only an event that has a name, so that it tells something beside the answer.

    Raises ServerReportedError for an error of vLLM's or FastAPI's form, NotAnAnswer for anything else.
    """
    if document.get("object") == "error" or "detail" in document:
        raise ServerReportedError(_message_of(document) or excerpt_of(document))
    if event_name in {"", "message"}:
        raise NotAnAnswer(f"an event has neither choices nor usage: {excerpt_of(document)}")


def _content(holder: dict[str, Any]) -> tuple[str, str]:
    """(reasoning, words) of a delta, a message or a choice. A server that sends two names of one thing sends its text
    twice."""
    reasoning = holder.get("reasoning_content") or holder.get("reasoning") or ""
    words = holder.get("content") or holder.get("text") or holder.get("refusal") or ""
    if isinstance(words, str) and isinstance(reasoning, str):
        return reasoning, words
    return _content_in_parts(reasoning, words)


def _content_in_parts(reasoning: Any, content: Any) -> tuple[str, str]:
    """The same where one of them is no text: content may be a list of parts (Mistral's reasoning)."""
    thoughts, words = reasoning if isinstance(reasoning, str) else "", content if isinstance(content, str) else ""
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "thinking":
            thoughts += _text(part.get("thinking"))
        else:
            words += _text([part])
    return thoughts, words


def _text(parts: Any) -> str:
    """The text of a list of parts, or of a text itself."""
    if isinstance(parts, str):
        return parts
    texts = (part.get("text") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return "".join(text for text in texts if isinstance(text, str))


def _calls(holder: dict[str, Any]) -> Iterator[str]:
    """Names and arguments of tool calls, also of the older `function_call`."""
    listed = holder.get("tool_calls")
    functions = [call.get("function") for call in listed if isinstance(call, dict)] if isinstance(listed, list) else []
    for function in [*functions, holder.get("function_call")]:
        if isinstance(function, dict):
            texts = (function.get("name"), function.get("arguments"))
            yield from (text for text in texts if isinstance(text, str))


def parse_usage(value: Any) -> Usage | None:
    """Token counts of a `usage` object; None where it is none."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(_count(value.get("prompt_tokens")), cached, _count(value.get("completion_tokens")))


def _count(value: Any) -> int | None:
    """A whole number of tokens, also where it is written as text; None for anything else."""
    if type(value) is int:
        return value if 0 <= value <= LARGEST_COUNT else None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 17:
        return int(value)
    return None


def first_choice(document: dict[str, Any]) -> dict[str, Any]:
    """The first choice of a whole answer. Raises NotAnAnswer where there is none."""
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise NotAnAnswer(f"the answer has no choice: {excerpt_of(document)}")
    return choice


def server_message(body: bytes) -> str:
    """The message of an error document, or the beginning of whatever came; empty where nothing did."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return excerpt(body)
    return _message_of(document) or excerpt(body)


def _message_of(value: Any, depth: int = NESTED_MESSAGES) -> str:
    """The sentence of an error document: `error`, `message`, `detail` (FastAPI: a list of `msg`), nested as servers
    nest them."""
    if isinstance(value, str):
        return " ".join(value[: 4 * MESSAGE_LENGTH].split())[:MESSAGE_LENGTH]
    if depth == 0:
        return ""
    if isinstance(value, list):
        return "; ".join(filter(None, (_message_of(entry, depth - 1) for entry in value[:3])))[:MESSAGE_LENGTH]
    if isinstance(value, dict):
        parts = (
            _message_of(value[name], depth - 1) for name in ("error", "message", "detail", "msg") if value.get(name)
        )
        return next(filter(None, parts), "")
    return ""


def wants_newer_length(status: int, words: str) -> bool:
    """Tell whether a refusal asks for the limit of an answer under the name `max_completion_tokens`."""
    return status in {400, 422} and NEWER_LENGTH in words


def excerpt(data: bytes) -> str:
    """The beginning of what came, on one line."""
    return " ".join(data[:MESSAGE_LENGTH].decode("utf-8", "replace").split())[:EXCERPT_LENGTH]


def excerpt_of(document: dict[str, Any]) -> str:
    """The beginning of a document, as JSON."""
    try:
        return excerpt(json.dumps(document).encode())
    except (ValueError, RecursionError):  # json.dumps recurses sooner than json.loads
        return "nested too deeply"
