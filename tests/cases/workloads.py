"""Workload files as people have them: exports of spreadsheets and datasets, request logs, and public traces.

`FILES` has each by its name, with what it holds. `write` puts one into a folder.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PROMPTS = 40
TIMED = 12


def question(number: int) -> str:
    return f"Question {number}: what is a cache?"


def lines(rows: Iterable[Any], *, ascii_only: bool = True) -> str:
    return "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)


def plain() -> str:
    return lines({"prompt": question(n)} for n in range(PROMPTS))


def separators() -> bytes:
    """Each prompt has a character that ends a line for `str.splitlines` and none in JSON."""
    marks = "\u2028\u2029\x85"
    rows = ({"prompt": f"Note {n}: summarise it.{marks[n % 3]}It has two lines."} for n in range(PROMPTS))
    return lines(rows, ascii_only=False).encode()


def control_characters() -> bytes:
    """A table with the separators that PDF and old text files have inside their cells."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["prompt"])
    marks = "\x0b\x0c\x1c\x1d\x1e\x1f"
    writer.writerows([f"Page {n}{marks[n % 6]}next page of the file"] for n in range(PROMPTS))
    return text.getvalue().encode()


def conversations(extra: dict[str, Any]) -> bytes:
    """A ShareGPT list with one conversation that has no question, in fourth place."""
    rows = [
        {
            "id": f"a{n}",
            "conversations": [{"from": "human", "value": question(n)}, {"from": "gpt", "value": "A store."}],
        }
        for n in range(PROMPTS)
    ]
    rows.insert(3, extra)
    return json.dumps(rows).encode()


def azure() -> str:
    """Azure's trace of language-model inference, 2023: moments with seven digits after the second."""
    rows = (
        f"2023-11-16 18:15:{46 + n // 10:02d}.{(6805900 + n * 97531) % 10000000:07d},{300 + n},{40 + n % 9}"
        for n in range(TIMED)
    )
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n"


def burstgpt() -> str:
    """Seconds as whole numbers."""
    rows = (f"{5 + n},ChatGPT,{400 + n},{18 + n},{418 + 2 * n},Conversation log" for n in range(TIMED))
    return "\n".join(["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *rows]) + "\n"


def mooncake(blocks: Callable[[int], list[int]]) -> str:
    """Milliseconds, and the blocks that prompts share."""
    return lines(
        {"timestamp": n * 100, "input_length": 655 + n, "output_length": 52, "hash_ids": blocks(n)}
        for n in range(TIMED)
    )


def moments(words: Callable[[int], dict[str, Any]]) -> str:
    return lines(
        {"timestamp": f"2023-11-16 18:15:46.{1000000 + n * 500000:07d}", **words(n), "max_tokens": 8}
        for n in range(TIMED)
    )


def batch(url: str, body: Callable[[int], dict[str, Any]]) -> str:
    """The input file of OpenAI's batch interface."""
    return lines(
        {"custom_id": f"r{n}", "method": "POST", "url": url, "body": {"model": "m", **body(n)}} for n in range(PROMPTS)
    )


def chat_body(number: int) -> dict[str, Any]:
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": question(number)}]},
    ]
    return {"messages": messages, "max_completion_tokens": 8}


def spreadsheet(separator: str, names: tuple[str, str]) -> str:
    rows = (separator.join([question(n), "8"]) for n in range(PROMPTS))
    return "\n".join([separator.join(names), *rows]) + "\n"


def spreadsheet_with_tail() -> str:
    """Excel's: Windows line ends, cells of two lines, and two empty rows at the end."""
    rows = "".join(f'"Question {n}, line one\nline two",8\r\n' for n in range(PROMPTS))
    return f"prompt,max_tokens\r\n{rows},\r\n,\r\n"


FILES: dict[str, Callable[[], str | bytes]] = {
    "plain.jsonl": plain,
    "separators.jsonl": separators,
    "control-characters.csv": control_characters,
    "mark.jsonl": lambda: b"\xef\xbb\xbf" + plain().encode(),
    "windows.jsonl": lambda: plain().replace("\n", "\r\n").encode(),
    "macintosh.jsonl": lambda: plain().replace("\n", "\r").encode(),
    "utf-16.jsonl": lambda: plain().encode("utf-16"),
    "utf-16.csv": lambda: spreadsheet("\t", ("prompt", "max_tokens")).encode("utf-16"),
    "sharegpt-empty.json": lambda: conversations({"id": "empty", "conversations": []}),
    "sharegpt-answer-alone.json": lambda: conversations(
        {"id": "answer", "conversations": [{"from": "gpt", "value": "Sure, going on with the text."}]}
    ),
    "azure.csv": azure,
    "burstgpt.csv": burstgpt,
    "mooncake.jsonl": lambda: mooncake(lambda n: [0, 1 + n % 3]),
    "mooncake-small-blocks.jsonl": lambda: mooncake(lambda n: [0, 1, 2 + n]),
    "mooncake-texts.jsonl": lambda: lines(
        {"timestamp": n * 100, "text_input": question(n), "output_length": 8} for n in range(TIMED)
    ),
    "unclear-times.jsonl": lambda: lines(
        {"timestamp": n * 250, "prompt": question(n), "max_tokens": 8} for n in range(TIMED)
    ),
    "moments.jsonl": lambda: moments(lambda n: {"prompt": question(n)}),
    "moments-messages.jsonl": lambda: moments(lambda n: {"messages": [{"role": "user", "content": question(n)}]}),
    "moments.csv": lambda: (
        "timestamp,prompt,max_tokens\n"
        + "".join(f"2023-11-16T18:15:46.{1000000 + n * 500000:07d}Z,{question(n)},8\n" for n in range(TIMED))
    ),
    "batch-chat.jsonl": lambda: batch("/v1/chat/completions", chat_body),
    "batch-responses.jsonl": lambda: batch(
        "/v1/responses", lambda n: {"input": question(n), "instructions": "Be short.", "max_output_tokens": 8}
    ),
    "spreadsheet-tail.csv": spreadsheet_with_tail,
    "spreadsheet-capitals.csv": lambda: spreadsheet(",", ("Prompt", "Max_Tokens")),
    "spreadsheet-semicolons.csv": lambda: spreadsheet(";", ("prompt", "max_tokens")),
}


def content(name: str) -> bytes:
    created = FILES[name]()
    return created if isinstance(created, bytes) else created.encode()


def write(folder: Path, name: str) -> Path:
    file = folder / name
    file.write_bytes(content(name))
    return file
