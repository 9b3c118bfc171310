"""Workloads of other formats become our own lines; what cannot be used is named by its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.domain.errors import InvalidWorkload
from backend.domain.workload.formats import csv_rows, from_json, from_table
from backend.domain.workload.workload import parse

SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "system", "value": "be kind"}, {"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"},
        {"from": "human", "value": "bye"},
    ],
}  # fmt: skip
OPENAI = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {**OPENAI, "max_completion_tokens": 9}}
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "look"}]}]}


def rows(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (SHAREGPT, {"turns": ["hi", "bye"], "system": "be kind"}),
        (OPENAI, {"prompt": "hi"}),
        (BATCH, {"prompt": "hi", "max_tokens": 9}),
        (PARTS, {"prompt": "look"}),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_known_formats_are_recognized(given: dict[str, Any], own: dict[str, Any], listed: bool) -> None:
    content = json.dumps([given] if listed else given).encode()
    made = from_json("w", content, {})
    assert rows(made) == [own]
    assert len(parse("w", made).prompts) == 1


def test_what_sort_of_prompt_a_line_is_is_kept_in_every_format() -> None:
    bench = (
        b'{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}\n{"prompt": "Sum it.", "kind": " maths "}\n'
    )
    bench += b'{"prompt": "Odd.", "kind": 3}\n'
    assert [prompt.kind for prompt in parse("w", from_json("w", bench, {})).prompts] == ["writing", "maths", None]
    spoken = json.dumps([{**OPENAI, "category": "chat"}, OPENAI, {"body": OPENAI["messages"], **OPENAI, "kind": ["no"]}]).encode()
    assert [prompt.kind for prompt in parse("w", from_json("w", spoken, {})).prompts] == ["chat", None, None]
    table = from_table(csv_rows(b"question,category\r\nWhy?,reason\r\n"), {"prompt": "question"})
    assert rows(table) == [{"prompt": "Why?", "kind": "reason"}]


def test_our_own_lines_stay_byte_for_byte() -> None:
    content = b'{"prompt":  "a", "extra": 1}\n\n{"turns": ["b", "c"]}\n'
    assert from_json("w", content, {}) is content


def test_a_table_finds_its_prompts_or_is_told_which_they_are() -> None:
    table = b'id,question,length,at\r\n1,"What, now?",12,2026-01-01T00:00:00+00:00\r\n2,Why?,,2026-01-01T00:00:02+00:00\r\n'
    assert rows(from_table(csv_rows(table), {})) == [{"prompt": "What, now?"}, {"prompt": "Why?"}]
    mapped = rows(from_table(csv_rows(table), {"prompt": "question", "max_tokens": "length", "timestamp": "at"}))
    assert [row.get("max_tokens") for row in mapped] == [12, None]
    assert mapped[1]["timestamp"] - mapped[0]["timestamp"] == 2
    assert rows(from_table([{"text": "a", "messages": None}], {})) == [{"prompt": "a"}]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1]", "Entry 1 .* not a JSON object"),
        (b'[{"prompt": "a"}, {"prompt": ', "not JSON"),
        (b'{"prompt": "a"}\n{"no": "b"}\n', 'Line 2 .* no "prompt"'),
        (b'{"conversations": [{"from": "gpt", "value": "a"}]}', "Line 1 .* no user speaks"),
        (b'{"messages": "hi"}', "Line 1 .* not a list of messages"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "Line 1 .* not text"),
        (b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": "many"}', "Line 1 .* whole number"),
        (b'{"messages": [{"role": "user", "content": "a"}], "timestamp": "soon"}', "Line 1 .* wrong time"),
        (b"[]", "empty"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line(content: bytes, says: str) -> None:
    with pytest.raises(InvalidWorkload, match=says):
        from_json("w", content, {})


@pytest.mark.parametrize(
    ("content", "columns", "says"),
    [
        (b"a,b\n1,2\n", {}, r"None of the columns \(a, b\)"),
        (b"question\nhi\n", {"prompt": "q"}, 'Row 1 .* no "q"'),
        (b"question\nhi\n", {"promt": "question"}, "`promt` is not a field"),
        (b"question\n\xff\n", {}, "not UTF-8"),
        (b'question\n"hi\n', {}, "not CSV"),
        (b"question\n", {"prompt": "question"}, "empty"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(content: bytes, columns: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidWorkload, match=says):
        from_table(csv_rows(content), columns)
