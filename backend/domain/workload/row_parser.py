"""One row of a workload in any known form -> an entry. Pure.

- Own lines: `prompt`, or `turns` of a conversation; with `system`, `max_tokens`, `timestamp` and `kind`, if any.
- ShareGPT: `conversations` (or `conversation`) of `{"from": "human" | "gpt" | "system", "value"}`. What the human says
are
  the turns; the recorded answers are left out, since the server's own take their place.
- OpenAI: `messages` of `{"role", "content"}` by the same rules, or a batch file's line with the request in its `body`:
of
  /v1/chat/completions, /v1/completions (`prompt`) or /v1/responses (`input`, `instructions`).
- A table: the column of prompts is the one that is named, else the first of PROMPT_COLUMNS that there is.
- A trace of lengths: the tokens of prompt and answer, and no text (Azure, BurstGPT, Mooncake, and the like).

Names of fields are read without differences in writing: `Max Tokens` is `max_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from backend.domain.workload import decoding
from backend.domain.workload.decoding import Row, plain_name
from backend.domain.workload.row_report import NO_PROMPT, UnusableRow
from backend.domain.workload.workload import MOST_TOKENS, Prompt, is_unicode, prompt_kind

PROMPT_COLUMNS = ("prompt", "question", "text_input", "input", "instruction", "query", "text")
FIELDS = ("prompt", "max_tokens", "timestamp", "system", "input_tokens")
INPUT_TOKENS = (
    "input_tokens",
    "input_length",
    "contexttokens",
    "context_tokens",
    "request_tokens",
    "prompt_tokens",
    "num_prefill_tokens",
    "prompt_size",
    "prompt_len",
    "input_len",
)
"""Azure, BurstGPT, Mooncake, Vidur, Splitwise and other traces."""
MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
OUTPUT_TOKENS = (
    "output_tokens",
    "output_length",
    "generatedtokens",
    "generated_tokens",
    "response_tokens",
    "completion_tokens",
    "num_decode_tokens",
    "token_size",
    "output_len",
)
"""Lengths of answers that a trace recorded: each becomes the longest answer of its request."""
TIMES = ("timestamp", "arrived_at", "arrival_timestamp", "arrival_time")
CONVERSATIONS = ("messages", "conversations", "conversation")
TEXTS = {"prompt", "turns", "text_input", "body", *CONVERSATIONS}
"""Fields of known formats that hold the prompt."""
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant"}
SYSTEM = {"system", "developer"}
NOT_SENT = ("tools", "functions", "response_format")
"""Fields of a request that become part of its prompt, and are not sent."""
TEXT_PARTS = {"text", "input_text", "output_text", None}


class WorkloadEntry(NamedTuple):
    """One request, or one conversation. In a trace of lengths `input_tokens` and `blocks` stand in place of `turns`."""

    number: int
    turns: tuple[str, ...] = ()
    system: str | None = None
    max_tokens: int | None = None
    time: Any = None
    """Time as the file writes it."""
    kind: str | None = None
    input_tokens: int | None = None
    blocks: tuple[int, ...] | None = None
    not_sent: tuple[str, ...] = ()

    def prompt(self, timestamp: float | None) -> Prompt:
        several = len(self.turns) > 1 or self.system is not None
        return Prompt(
            prompt=self.turns[0],
            turns=self.turns if several else None,
            system=self.system,
            max_tokens=self.max_tokens,
            timestamp=timestamp,
            kind=self.kind,
        )


def parse_row(row: Row, columns: Mapping[str, str]) -> WorkloadEntry:
    """Raises UnusableRow."""
    # 1. The object, and the request inside it.
    document = row.document
    if isinstance(document, UnusableRow):
        raise document
    if not isinstance(document, dict):
        raise UnusableRow("it is not a JSON object")
    outer = decoding.plain_fields(document)
    body = decoding.plain_fields(outer["body"]) if isinstance(outer.get("body"), dict) else outer
    # 2. Its prompt, then what else it says.
    entry = _words(row.number, _request(outer, body), columns)
    recorded = OUTPUT_TOKENS if entry.input_tokens is not None or "text_input" in body else ()
    entry = entry._replace(
        max_tokens=_max_tokens(body, columns, recorded),
        time=_first(body, columns, "timestamp", TIMES),
        kind=prompt_kind(outer),
        not_sent=tuple(field for field in NOT_SENT if body.get(field)),
    )
    # 3. Text that can be sent.
    if not all(map(is_unicode, (*entry.turns, entry.system or ""))):
        raise UnusableRow("it has half a character (a lone surrogate)")
    return entry


def _request(outer: Mapping[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """The body of a batch file's line, with the input of /v1/responses as messages. Raises UnusableRow."""
    url = outer.get("url")
    if body is outer or not isinstance(url, str):
        return body
    if url.rstrip("/").endswith("/embeddings"):
        raise UnusableRow("it asks for embeddings, which are no answers")
    content = body.get("input")
    if not url.rstrip("/").endswith("/responses"):
        return body
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if body.get("instructions") and isinstance(messages, list):
        messages = [{"role": "system", "content": body["instructions"]}, *messages]
    return body | {"messages": messages}


def _words(number: int, row: Mapping[str, Any], columns: Mapping[str, str]) -> WorkloadEntry:
    """Return the prompt of a row, or the prompt's length in a trace of lengths. Raises UnusableRow."""
    # 1. A length, where the person named its column.
    if "input_tokens" in columns:
        length = _field(row, columns["input_tokens"])
        return WorkloadEntry(number, input_tokens=_length(length), blocks=_blocks(row.get("hash_ids")))
    # 2. A conversation, where no column of prompts was named.
    if "prompt" not in columns:
        spoken = next((row[name] for name in CONVERSATIONS if row.get(name)), None)
        if spoken is not None:
            return _spoken(number, spoken)
        if row.get("turns"):
            return WorkloadEntry(number, turns=_turns(row["turns"]), system=_system(row, columns))
    # 3. The field of the prompt, or of its length.
    column = columns.get("prompt", "prompt")
    prompt = _field(row, column)
    if prompt is None and "prompt" not in columns:
        prompt = row.get("text_input")
        length = _first(row, columns, "input_tokens", INPUT_TOKENS) if prompt is None else None
        if length is not None:
            return WorkloadEntry(number, input_tokens=_length(length), blocks=_blocks(row.get("hash_ids")))
    # 4. Instruction and input of Alpaca are one prompt.
    if column == ALPACA and isinstance(prompt, str) and isinstance(row.get("input"), str) and row["input"]:
        prompt = f"{prompt}\n\n{row['input']}"
    if prompt is None and any(name in row for name in CONVERSATIONS):
        raise UnusableRow("its conversation is empty")
    if not isinstance(prompt, str) or not prompt:
        raise UnusableRow(f'{NO_PROMPT} "{column}"')
    return WorkloadEntry(number, turns=(prompt,), system=_system(row, columns))


ALPACA = "instruction"
"""Its prompt is the instruction and, where there is one, the input below it (Stanford Alpaca, 2023)."""


def _field(row: Mapping[str, Any], column: str) -> Any:
    return row.get(column, row.get(plain_name(column)))


def _first(row: Mapping[str, Any], columns: Mapping[str, str], field: str, names: Sequence[str]) -> Any:
    """The value of the column that was named for the field, else of the first of these names that is there."""
    if field in columns:
        return _field(row, columns[field])
    return next((row[name] for name in names if name in row), None)


def _system(row: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
    """Raises UnusableRow where it is no text."""
    system = _first(row, columns, "system", ("system",))
    if system is None or system == "":
        return None
    if "system" in columns:
        return str(system)
    if not isinstance(system, str):
        raise UnusableRow('its "system" is not a text')
    return system


def _turns(turns: Any) -> tuple[str, ...]:
    if not isinstance(turns, list) or not all(isinstance(turn, str) and turn for turn in turns):
        raise UnusableRow('its "turns" are not a list of texts')
    return tuple(turns)


def _spoken(number: int, messages: Any) -> WorkloadEntry:
    """The user's turns and the system's words of a conversation. Raises UnusableRow."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UnusableRow("its conversation is not a list of messages")
    spoken = [(str(m.get("role") or m.get("from") or ""), _text(m.get("content", m.get("value")))) for m in messages]
    turns = tuple(text for who, text in spoken if SPEAKERS.get(who) == "user" and text)
    system = "\n".join(text for who, text in spoken if who in SYSTEM and text)
    if not turns:
        raise UnusableRow("no user speaks in its conversation")
    return WorkloadEntry(number, turns=turns, system=system or None)


def _text(content: Any) -> str:
    """Raises UnusableRow where a message has other things than text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    if not all(
        isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type") in TEXT_PARTS
        for part in parts
    ):
        raise UnusableRow("one of its messages is not text, and only text can be sent")
    return "\n".join(part["text"] for part in parts)


def _max_tokens(row: Mapping[str, Any], columns: Mapping[str, str], recorded: Sequence[str]) -> int | None:
    """The longest answer: what was asked, else what was `recorded` under these names. Raises UnusableRow."""
    tokens = _first(row, columns, "max_tokens", (*MAX_TOKENS, *recorded))
    return None if tokens is None else _whole(tokens, "its longest answer is not a whole number above 0")


def _length(value: Any) -> int:
    return _whole(value, "the length of its prompt is not a whole number above 0")


def _whole(value: Any, otherwise: str) -> int:
    """Raises UnusableRow."""
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if not 1 <= number <= MOST_TOKENS or number != int(number):
        raise UnusableRow(otherwise)
    return int(number)


def _blocks(ids: Any) -> tuple[int, ...] | None:
    """The blocks of a prompt, which others share. Raises UnusableRow."""
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(block) is int for block in ids):
        raise UnusableRow('its "hash_ids" are not a list of whole numbers')
    return tuple(ids)
