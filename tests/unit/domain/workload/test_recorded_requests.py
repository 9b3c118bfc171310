"""A gateway's request log with content -> lines of a workload."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend.domain.workload import workload_reader
from backend.domain.workload.recorded_requests import RecordedFilter, read_requests

CHAT = "/v1/chat/completions"


def record(request: Any, path: str = CHAT, **fields: Any) -> bytes:
    """A line as the gateway writes it."""
    line = {"time": "2026-11-26T10:00:00.000Z", "key": "app", "model": "starter", "path": path, "status": 200}
    line |= {"error": None, "completion_tokens": None, "request": request and json.dumps(request), **fields}
    return json.dumps(line).encode()


def chat(*words: str, **request: Any) -> dict[str, Any]:
    """A request whose messages are the user's and the assistant's by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(words)]
    return {"model": "starter", "messages": messages, **request}


def test_requests_of_one_conversation_are_one_line_with_its_longest_answer() -> None:
    log = [
        record(chat("hello"), completion_tokens=7, time="2026-11-26T10:00:00.000Z"),
        record(chat("other"), completion_tokens=3, time="2026-11-26T10:00:01.000Z"),
        record(chat("hello", "hi", "and now?"), completion_tokens=40, time="2026-11-26T10:00:09.000Z"),
        record(chat("hello", "hi", "and now?", "so", "more"), completion_tokens=5, time="2026-11-26T10:00:20.000Z"),
    ]
    recorded = read_requests(log)
    assert (recorded.requests, recorded.kind, recorded.left_out) == (4, "chat", {})
    assert recorded.lines == (
        {"turns": ["hello", "and now?", "more"], "max_tokens": 40, "timestamp": "2026-11-26T10:00:00.000Z"},
        {"prompt": "other", "max_tokens": 3, "timestamp": "2026-11-26T10:00:01.000Z"},
    )


def test_conversations_of_two_clients_or_models_stay_apart() -> None:
    log = [record(chat("a")), record(chat("a", "x", "b"), key="tests"), record(chat("a", "x", "b"), model="large")]
    assert [line.get("turns") for line in read_requests(log).lines] == [None, ["a", "b"], ["a", "b"]]


def test_what_cannot_be_asked_again_is_left_out_with_its_reason() -> None:
    image = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    log = [
        record(chat("kept", max_tokens=9)),
        b"no json",
        record(chat("failed"), status=502, error="upstream_died"),
        record(chat("left"), error="client_left"),
        record(None),
        record({"input": "text"}, "/v1/embeddings"),
        record(image),
        json.dumps({**json.loads(record(chat("cut"))), "request": '{"messages": [{"ro'}).encode(),
    ]
    recorded = read_requests(log)
    assert [(line["prompt"], line["max_tokens"]) for line in recorded.lines] == [("kept", 9)]
    assert recorded.left_out == {
        "the line is no record of a request": 1,
        "the request was not answered": 2,
        "its content was not recorded": 1,
        "it asks for no text": 1,
        "one of its messages is not text, and only text can be sent": 1,
        "its content is longer than what is recorded": 1,
    }


def test_the_kind_that_most_requests_have_is_taken() -> None:
    completion = record({"model": "starter", "prompt": "def f():"}, "/v1/completions")
    recorded = read_requests([completion, completion, record(chat("hello"))])
    assert (recorded.kind, len(recorded.lines), recorded.requests) == ("completion", 2, 2)
    assert recorded.left_out == {"it is a chat, and most are completions": 1}


def test_a_filter_leaves_out_other_models_keys_and_times() -> None:
    log = [
        record(chat("one")),
        record(chat("two"), model="large"),
        record(chat("three"), key="tests"),
        record(chat("four"), time="2026-11-25T10:00:00.000Z"),
    ]
    chosen = RecordedFilter(model="starter", key="app", since="2026-11-26T00:00:00.000Z")
    assert [line["prompt"] for line in read_requests(log, chosen).lines] == ["one"]
    assert read_requests(log, chosen.model_copy(update={"model": "none"})).kind is None


@given(st.lists(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4), min_size=1, max_size=6))
def test_every_line_is_read_as_a_workload(conversations: list[list[str]]) -> None:
    """Whatever is asked, in any number of turns: each line is one that the reader of workloads accepts, in order."""
    texts = [
        [f"{number}.{place} {word}" for place, word in enumerate(turns)] for number, turns in enumerate(conversations)
    ]
    log = []
    for turns in texts:
        for length in range(1, len(turns) + 1):
            words = [word for turn in turns[:length] for word in (turn, "answer")][:-1]
            log.append(record(chat(*words)))
    recorded = read_requests(log)
    content = "".join(json.dumps(line) + "\n" for line in recorded.lines).encode()
    entries = workload_reader.read_json("recorded.jsonl", content, {}).entries
    assert [list(entry.turns) for entry in entries] == texts and recorded.requests == len(log)
