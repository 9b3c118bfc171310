"""Workloads of every known form are read row by row; what cannot be used is counted and named, and too much of it
refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.domain.errors import InvalidWorkload
from backend.domain.workload.row_report import UnusedRow
from backend.domain.workload.workload import parse_workload
from backend.domain.workload.workload_reader import (
    ReadWorkload,
    prompt_candidates,
    read_csv,
    read_json,
    read_table,
    write_lines,
)
from tests.cases import workloads as cases

SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "system", "value": "be kind"},
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "hello"},
        {"from": "human", "value": "bye"},
    ],
}
OPENAI = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
BATCH = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {**OPENAI, "max_completion_tokens": 9},
}
RESPONSES = {"url": "/v1/responses", "body": {"input": "hi", "instructions": "be kind", "max_output_tokens": 9}}
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "look"}]}]}
INPUTS = {
    "url": "/v1/responses",
    "body": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "look"}]}]},
}


def rows(read_workload: ReadWorkload) -> list[dict[str, Any]]:
    return [json.loads(line) for line in write_lines(read_workload).splitlines()]


def read(name: str, content: bytes) -> ReadWorkload:
    return read_csv(name, content, {}) if name.endswith(".csv") else read_json(name, content, {})


@pytest.mark.parametrize(
    ("values", "own"),
    [
        (SHAREGPT, {"turns": ["hi", "bye"], "system": "be kind"}),
        (OPENAI, {"prompt": "hi"}),
        (BATCH, {"prompt": "hi", "max_tokens": 9}),
        (RESPONSES, {"turns": ["hi"], "system": "be kind", "max_tokens": 9}),
        (INPUTS, {"prompt": "look"}),
        (PARTS, {"prompt": "look"}),
        ({"Prompt": "hi", "Max Tokens": "9"}, {"prompt": "hi", "max_tokens": 9}),
        ({"prompt": "hi", "system": "be kind"}, {"turns": ["hi"], "system": "be kind"}),
        ({"prompt": "hi", "messages": []}, {"prompt": "hi"}),
        ({"text_input": "hi", "output_length": 9}, {"prompt": "hi", "max_tokens": 9}),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_known_formats_are_recognized(values: dict[str, Any], own: dict[str, Any], listed: bool) -> None:
    content = json.dumps([values] if listed else values).encode()
    created = read_json("w", content, {})
    assert rows(created) == [own]
    assert len(parse_workload("w", write_lines(created)).prompts) == 1


def test_what_sort_of_prompt_a_line_is_is_kept_in_every_format() -> None:
    bench = (
        b'{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}\n'
        b'{"prompt": "Sum it.", "kind": " maths "}\n'
    )
    bench += b'{"prompt": "Odd.", "kind": 3}\n'
    assert [prompt.kind for prompt in parse_workload("w", write_lines(read_json("w", bench, {}))).prompts] == [
        "writing",
        "maths",
        None,
    ]
    spoken = json.dumps(
        [{**OPENAI, "category": "chat"}, OPENAI, {"body": OPENAI["messages"], **OPENAI, "kind": ["no"]}]
    ).encode()
    assert [prompt.kind for prompt in parse_workload("w", write_lines(read_json("w", spoken, {}))).prompts] == [
        "chat",
        None,
        None,
    ]
    table = read_csv("w", b"question,category\r\nWhy?,reason\r\n", {"prompt": "question"})
    assert rows(table) == [{"prompt": "Why?", "kind": "reason"}]


def test_a_table_finds_its_prompts_or_is_told_which_they_are() -> None:
    table = (
        b'id,question,length,at\r\n1,"What, now?",12,2026-01-01T00:00:00+00:00\r\n2,Why?,,2026-01-01T00:00:02+00:00\r\n'
    )
    assert rows(read_csv("w", table, {})) == [{"prompt": "What, now?"}, {"prompt": "Why?"}]
    mapped = rows(read_csv("w", table, {"prompt": "question", "max_tokens": "length", "timestamp": "at"}))
    assert mapped == [
        {"prompt": "What, now?", "max_tokens": 12, "timestamp": 0.0},
        {"prompt": "Why?", "timestamp": 2.0},
    ]
    assert rows(read_table("w", ["text", "messages"], [{"text": "a", "messages": None}], {})) == [{"prompt": "a"}]
    alpaca = read_csv("w", b"instruction,input,output\nSum up.,A text.,x\nGreet.,,x\n", {})
    assert rows(alpaca) == [{"prompt": "Sum up.\n\nA text."}, {"prompt": "Greet."}]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1]", "its only entry cannot be used.*entry 1: it is not a JSON object"),
        (b'[{"prompt": "a"}, {"prompt": ', "w is not JSON"),
        (
            b'{"prompt": "a"}\n{"no": "b"}\n',
            '1 of 2 lines cannot be used.*line 2: there is no text in "prompt".*name the field',
        ),
        (b'{"prompt": "a"}\n{"prompt": ', r"line 2: it is not JSON \(column 11: Expecting value\)"),
        (b'{"conversations": [{"from": "gpt", "value": "a"}]}', "line 1: no user speaks in its conversation"),
        (b'{"conversations": []}', "line 1: its conversation is empty"),
        (b'{"messages": "hi"}', "line 1: its conversation is not a list of messages"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "line 1: one of its messages is not text",
        ),
        (
            b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": "many"}',
            "line 1: its longest answer is not a whole",
        ),
        (b'{"messages": [{"role": "user", "content": "a"}], "timestamp": "soon"}', "line 1: a time that is neither"),
        (b'{"prompt": "\\ud800"}', "line 1: it has half a character"),
        (b'{"prompt": "a", "max_tokens": true}', "line 1: its longest answer"),
        (b'{"url": "/v1/embeddings", "body": {"input": "a"}}', "line 1: it asks for embeddings"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', r"w is not UTF-8 text \(line 2, byte 29\)"),
        ('{"prompt": "a"}'.encode("utf-16-le"), "as UTF-16 without its mark"),
        (b"\xff\xfe\x00", "w is not UTF-16 text"),
        (b"[]", "w is empty"),
        (b"\n \r\n", "w is empty"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line(content: bytes, says: str) -> None:
    with pytest.raises(InvalidWorkload, match=says):
        read_json("w", content, {})


@pytest.mark.parametrize(
    ("content", "columns", "says"),
    [
        (b"a,b\n1,2\n", {}, r"None of the columns of w \(a, b\)"),
        (b"question\nhi\n", {"prompt": "q"}, "w has no column `q`: its columns are question"),
        (b"question\nhi\n", {"promt": "question"}, "`promt` is not a field"),
        (b"question\n\xff\n", {}, "not UTF-8"),
        (b'question\n"hi\n', {}, "not a table"),
        (b"question\n", {"prompt": "question"}, "empty"),
        (b"question\n,\n,\n", {}, "empty"),
        (b"prompt\nHello, world\n", {}, "row 1: it has more cells than the table has columns"),
        (b"prompt,Prompt\na,b\n", {}, "two columns called `prompt`"),
        (
            b"id,tokens\n1,300\n2,310\n",
            {"prompt": "tokens"},
            "`tokens` of w holds numbers and no text.*input_tokens=COLUMN",
        ),
    ],
)
def test_a_table_that_cannot_be_used_says_why(content: bytes, columns: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidWorkload, match=says):
        read_csv("w", content, columns)


def test_rows_that_cannot_be_used_are_left_out_up_to_one_in_ten() -> None:
    good = [{"prompt": f"p{n}"} for n in range(18)]
    bad: list[Any] = [{"messages": []}, 7]
    reading = read_json("w", cases.lines([*good[:4], *bad, *good[4:]]).encode(), {}).reading
    assert (reading.rows, reading.left_out) == (20, 2)
    assert reading.named == (
        UnusedRow(number=5, reason="its conversation is empty"),
        UnusedRow(number=6, reason="it is not a JSON object"),
    )
    with pytest.raises(
        InvalidWorkload, match=r"3 of 21 lines cannot be used, and at most 1 in 10 .*lines 6 and 7: it is not"
    ):
        read_json("w", cases.lines([*good[:4], *bad, 8, *good[4:]]).encode(), {})


@pytest.mark.parametrize("name", [name for name in cases.FILES if name != "unclear-times.jsonl"])
def test_every_case_is_read_row_by_row(name: str) -> None:
    content = read(name, cases.content(name))
    left_out = 1 if name.startswith("sharegpt") else 0
    assert (len(content.entries), content.reading.left_out) == (content.reading.rows - left_out, left_out)
    assert len(content.entries) in {cases.PROMPTS, cases.TIMED}
    texts = [entry.turns[-1] for entry in content.entries if entry.turns]
    assert len(set(texts)) == len(texts)


def test_text_of_one_line_stays_one_prompt_whatever_it_holds() -> None:
    prompts = [entry.turns[0] for entry in read("separators.jsonl", cases.content("separators.jsonl")).entries]
    assert prompts[:3] == [
        f"Note {n}: summarise it.{mark}It has two lines." for n, mark in enumerate("\u2028\u2029\x85")
    ]
    pages = [
        entry.turns[0] for entry in read("control-characters.csv", cases.content("control-characters.csv")).entries
    ]
    assert pages[1] == "Page 1\x0cnext page of the file"
    cells = [entry.turns[0] for entry in read("spreadsheet-tail.csv", cases.content("spreadsheet-tail.csv")).entries]
    assert cells[39] == "Question 39, line one\nline two"


@pytest.mark.parametrize(
    ("name", "times", "seconds"),
    [
        ("azure.csv", "moments", 1.0 + (6805900 + 11 * 97531) % 10000000 / 1e7 - 0.68059),
        ("burstgpt.csv", "seconds", 11.0),
        ("mooncake.jsonl", "milliseconds", 1.1),
        ("mooncake-texts.jsonl", "milliseconds", 1.1),
        ("moments.jsonl", "moments", 0.55),
        ("moments-messages.jsonl", "moments", 0.55),
        ("moments.csv", "moments", 0.55),
    ],
)
def test_times_are_read_alike_in_every_form(name: str, times: str, seconds: float) -> None:
    reading = read(name, cases.content(name)).reading
    assert reading.times == times and reading.seconds == pytest.approx(seconds, abs=1e-9)


def test_a_unit_that_nobody_can_know_is_asked_for_where_times_are_needed() -> None:
    content = cases.content("unclear-times.jsonl")
    with pytest.raises(
        InvalidWorkload, match=r"12 requests over 45.8 min\) or in milliseconds \(over 2.75 s\)"
    ) as refused:
        read_json("w", content, {})
    assert refused.value.named == ("time_unit",)
    assert read_json("w", content, {}, time_unit="ms").reading.seconds == 2.75
    unread = read_json("w", content, {}, timed=False)
    assert (unread.reading.times, unread.seconds) == ("unclear", [None] * 12)


def test_a_trace_of_lengths_is_never_taken_for_prompts() -> None:
    for name in ("azure.csv", "burstgpt.csv", "mooncake.jsonl"):
        content = read(name, cases.content(name))
        assert content.reading.lengths is not None and not any(entry.turns for entry in content.entries)
        assert prompt_candidates(name, "." + name.rpartition(".")[2], cases.content(name)) == []
    assert rows(read("azure.csv", cases.content("azure.csv")))[1] == {
        "input_tokens": 301,
        "max_tokens": 41,
        "timestamp": 0.0097531,
    }
    mixed = cases.lines([*({"input_length": 5, "output_length": 1} for _ in range(19)), {"prompt": "a"}]).encode()
    assert read_json("w", mixed, {}).reading.named[0].reason == "it has a text, and other rows have lengths alone"
    named = read_csv("w", b"n,size\n1,300\n2,310\n", {"input_tokens": "size"})
    assert named.reading.lengths == (300, 310)


def test_what_changes_a_prompt_and_is_not_sent_is_told() -> None:
    values = {"url": "/v1/chat/completions", "body": {**OPENAI, "tools": [{"type": "function"}]}}
    assert read_json("w", json.dumps(values).encode(), {}).reading.settings_left_out == ("tools",)
