"""Workloads of other formats -> the lines of our own: ShareGPT, OpenAI messages and batches, tables. Pure; reads no files.

- ShareGPT: `conversations` (or `conversation`) of `{"from": "human" | "gpt" | "system", "value"}`. What the human says are
  the turns; the recorded answers are left out, since the server's own take their place.
- OpenAI: `messages` of `{"role", "content"}`, or a batch file's line with those in its `body`. The same rules.
- A table: the column of prompts is the one that is named, else the first of PROMPT_COLUMNS that there is.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from backend.domain.errors import InvalidWorkload
from backend.domain.workload.workload import MOST_TOKENS, documents, kind_of, parse

PROMPT_COLUMNS = ("prompt", "question", "input", "instruction", "query", "text")
FIELDS = ("prompt", "max_tokens", "timestamp", "system")
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant"}

Row = tuple[str, Any]
"""("Line 7", its document)."""


def from_json(name: str, content: bytes, columns: Mapping[str, str]) -> bytes:
    """JSON lines, or one JSON list, as our own lines; what already is that comes back unchanged. Raises InvalidWorkload."""
    rows = _rows(content)
    if not columns and all(isinstance(row, dict) and _is_own(row) for _, row in rows) and not _is_list(content):
        parse(name, content)
        return content
    return lines(rows, columns)


def csv_rows(content: bytes) -> Iterator[dict[str, Any]]:
    """Row by row, of a table with a first row of names. Raises InvalidWorkload."""
    try:
        text = content.decode("utf-8-sig")
        csv.field_size_limit(2**30)
        yield from csv.DictReader(io.StringIO(text, newline=""), strict=True)
    except UnicodeDecodeError as error:
        raise InvalidWorkload(f"The table is not UTF-8 text (byte {error.start + 1}): convert the file.") from None
    except csv.Error as error:
        raise InvalidWorkload(f"The table is not CSV ({error}): check its quotes.") from None


def objects(content: bytes) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines or of a JSON list. Raises InvalidWorkload."""
    return (row for _, row in _rows(content) if isinstance(row, dict))


def unknown_fields(content: bytes) -> list[str]:
    """The fields of the first object, where no known format says which of them is the prompt; none where one does.

    Raises InvalidWorkload where it is not JSON.
    """
    first = next(objects(content), {})
    body = first["body"] if isinstance(first.get("body"), dict) else first
    known = {"prompt", "turns", "messages", "conversations", "conversation"}
    return [] if known & body.keys() else [name for name in first if isinstance(first[name], str | int | float)]


def names(first_line: str) -> list[str]:
    """The columns of a CSV file by its first line."""
    return next(csv.reader([first_line]), [])


def from_table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> bytes:
    """Rows of a table, numbered from 1 without the row of names. Raises InvalidWorkload."""
    numbered: list[Row] = [(f"Row {n}", {k: v for k, v in row.items() if v not in (None, "")}) for n, row in enumerate(rows, 1)]
    return lines(numbered, columns or _guess({name for _, row in numbered for name in row}))


def lines(rows: Iterable[Row], columns: Mapping[str, str]) -> bytes:
    """Our own JSONL. Raises InvalidWorkload naming the first line or row that cannot be used."""
    if unknown := set(columns) - set(FIELDS):
        raise InvalidWorkload(f"`{min(unknown)}` is not a field of a workload: the fields are {', '.join(FIELDS)}.")
    made = [json.dumps(_own(where, row, columns), ensure_ascii=False) for where, row in rows]
    if not made:
        raise InvalidWorkload("The workload is empty: give at least one prompt.")
    return ("\n".join(made) + "\n").encode("utf-8", "surrogatepass")


def _rows(content: bytes) -> list[Row]:
    if not _is_list(content):
        return [(f"Line {number}", row) for number, row in documents(content)]
    try:
        listed = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidWorkload(f"The workload is not JSON{where}: give a list of objects, or one object a line.") from None
    return [(f"Entry {number}", row) for number, row in enumerate(listed, 1)]


def _is_list(content: bytes) -> bool:
    return content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def _is_own(row: dict[str, Any]) -> bool:
    return "turns" in row or (isinstance(row.get("prompt"), str) and "conversations" not in row)


def _own(where: str, row: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InvalidWorkload(f"{where} of the workload is not a JSON object: each is an object with its prompt.")
    body = row["body"] if isinstance(row.get("body"), dict) else row
    messages = next((body[name] for name in ("messages", "conversations", "conversation") if body.get(name)), None)
    own = _spoken(where, messages) if messages is not None and "prompt" not in columns else _single(where, body, columns)
    kind = kind_of(row)
    return own | _numbers(where, body, columns) | ({"kind": kind} if isinstance(kind, str) else {})


def _single(where: str, row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    if row.get("turns") and "prompt" not in columns:
        return {"turns": row["turns"], **({"system": row["system"]} if row.get("system") else {})}
    column = columns.get("prompt", "prompt")
    prompt = row.get(column)
    if not isinstance(prompt, str) or not prompt:
        raise InvalidWorkload(f'{where} of the workload has no "{column}" with text in it: name the field of the prompts.')
    system = row.get(columns["system"]) if "system" in columns else None
    return {"turns": [prompt], "system": str(system)} if system else {"prompt": prompt}


def _spoken(where: str, messages: Any) -> dict[str, Any]:
    """The user's turns and the system's words of a conversation."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidWorkload(f"{where} of the workload has a conversation that is not a list of messages: correct it.")
    spoken = [(str(m.get("role") or m.get("from") or ""), _text(where, m.get("content", m.get("value")))) for m in messages]
    turns = [text for who, text in spoken if SPEAKERS.get(who) == "user" and text]
    system = "\n".join(text for who, text in spoken if who in {"system", "developer"})
    if not turns:
        raise InvalidWorkload(f"{where} of the workload has a conversation in which no user speaks: take it out.")
    if len(turns) == 1 and not system:
        return {"prompt": turns[0]}
    return {"turns": turns, **({"system": system} if system else {})}


def _text(where: str, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise InvalidWorkload(f"{where} of the workload has a message that is not text: only text can be sent.")
    return "\n".join(part["text"] for part in parts)


def _numbers(where: str, row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tokens = row.get(columns.get("max_tokens", "max_tokens"))
    if tokens is None and "max_tokens" not in columns:
        tokens = row.get("max_completion_tokens")
    if tokens is not None:
        found["max_tokens"] = _whole(where, tokens)
    if (time := row.get(columns.get("timestamp", "timestamp"))) is not None:
        found["timestamp"] = _seconds(where, time)
    return found


def _whole(where: str, value: Any) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if not 1 <= number <= MOST_TOKENS or number != int(number):
        raise InvalidWorkload(f"{where} of the workload has a wrong longest answer: it must be a whole number above 0.")
    return int(number)


def _seconds(where: str, value: Any) -> float:
    """A number of seconds, or a moment as ISO 8601 writes it."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return (value if isinstance(value, datetime) else datetime.fromisoformat(str(value))).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InvalidWorkload(f"{where} of the workload has a wrong time: give seconds, or one as 2026-01-31T12:00:00.") from None


def _guess(names: set[str]) -> dict[str, str]:
    found = next((wanted for wanted in PROMPT_COLUMNS if wanted in names), None)
    if found is None and not names & {"messages", "conversations", "turns"}:
        shown = ", ".join(sorted(names)[:10])
        raise InvalidWorkload(
            f"None of the columns ({shown}) is known as the prompt: name it with {{}}, as prompt=COLUMN.", "columns"
        )
    return {"prompt": found} if found else {}
