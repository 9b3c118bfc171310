"""The JSON of OpenAI-compatible servers as it really comes: content, reasoning, tool calls, usage, errors; and any
other JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.load.openai_json import (
    AnswerChunk,
    NotAnAnswer,
    ServerReportedError,
    Usage,
    first_choice,
    parse_chunk,
    parse_object,
    parse_usage,
    server_message,
    wants_newer_length,
)

NAMES = [
    *(
        "choices",
        "usage",
        "text",
        "delta",
        "message",
        "content",
        "error",
        "detail",
        "tool_calls",
        "function",
        "arguments",
    ),
    *(
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "finish_reason",
        "reasoning",
        "x_groq",
        "type",
        "object",
    ),
]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=20,
)


def chunk(delta: dict[str, Any], **more: Any) -> AnswerChunk:
    """What is read of one event with that delta."""
    read = parse_chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more})
    assert read is not None
    return read


def test_reasoning_that_is_sent_under_two_names_is_read_once():
    read = chunk({"reasoning": "hm", "reasoning_content": "hm", "content": None})
    assert (read.reasoning, read.words, read.content) == ("hm", "", "hm")


def test_content_in_parts_is_words_and_reasoning():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Yes"}, 5]
    assert chunk({"content": parts})[:2] == ("Yes", "hm")


def test_a_tool_call_is_content_and_no_words():
    read = chunk({"content": None, "tool_calls": [{"index": 0, "function": {"name": "weather", "arguments": '{"a":'}}]})
    assert (read.words, read.calls, read.content) == ("", 'weather{"a":', 'weather{"a":')
    assert chunk({"function_call": {"name": "f", "arguments": "1"}}).content == "f1"


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 8}}]},
        {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 8}},
        },
        {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": "3", "completion_tokens": "8"},
        },
    ],
)
def test_usage_is_found_where_servers_put_it(document: dict[str, Any]):
    read = parse_chunk(document)
    assert read is not None
    assert (read.usage, read.finish_reason) == (Usage(3, None, 8), "stop")


@pytest.mark.parametrize("count", [-1, 2.0, True, "many", "8.5", None, [8], 10**30, "9" * 17])
def test_what_is_no_count_of_tokens_is_none(count: Any):
    assert parse_usage({"completion_tokens": count}) == Usage(None, None, None)


@pytest.mark.parametrize(
    ("name", "document", "sentence"),
    [
        ("error", {"message": "CUDA out of memory", "code": 500}, "CUDA out of memory"),
        ("", {"error": {"message": "CUDA out of memory"}}, "CUDA out of memory"),
        ("", {"error": "CUDA out of memory", "choices": []}, "CUDA out of memory"),
        ("", {"object": "error", "message": "the engine died"}, "the engine died"),
        ("", {"detail": [{"msg": "Extra inputs are not permitted"}]}, "Extra inputs are not permitted"),
    ],
)
def test_the_server_s_own_error_is_its_sentence(name: str, document: dict[str, Any], sentence: str):
    with pytest.raises(ServerReportedError, match=sentence):
        parse_chunk(document, name)


@pytest.mark.parametrize(("name", "document"), [("ping", {}), ("", {"type": "ping"}), ("metadata", {"cost": 1})])
def test_pings_and_named_events_beside_the_answer_say_nothing(name: str, document: dict[str, Any]):
    assert parse_chunk(document, name) is None


@pytest.mark.parametrize("document", [{}, {"choices": [5]}, {"choices": 5}, {"model": "m"}])
def test_another_form_is_refused_in_a_sentence(document: dict[str, Any]):
    with pytest.raises(NotAnAnswer):
        parse_chunk(document)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{", b"[1]", b"\xff\xfe", b'{"a":' * 100_000, b"5", b""])
def test_what_is_no_json_object_is_refused_in_a_sentence(data: bytes):
    with pytest.raises(NotAnAnswer, match=r"an event is not (JSON|a JSON object)"):
        parse_object(data)
    assert isinstance(server_message(data), str)


@pytest.mark.parametrize("document", [{}, {"choices": None}, {"choices": []}, {"choices": [5]}, {"choices": {"0": {}}}])
def test_a_whole_answer_without_a_choice_is_refused(document: dict[str, Any]):
    with pytest.raises(NotAnAnswer, match="no choice"):
        first_choice(document)


@given(st.dictionaries(st.sampled_from(NAMES), ANY_JSON, max_size=6), st.sampled_from(["", "error", "ping", "x"]))
def test_any_json_is_read_or_refused_by_the_two_errors(document: dict[str, Any], name: str):
    try:
        read = parse_chunk(document, name)
    except (NotAnAnswer, ServerReportedError) as error:
        assert str(error)
    else:
        assert read is None or (isinstance(read.content, str) and isinstance(read.usage, Usage | None))
    assert isinstance(server_message(json.dumps(document).encode()), str)


def test_a_message_is_found_however_deep_servers_nest_it_and_is_short():
    nested = {"object": "error", "message": {"detail": [{"msg": "Extra inputs are not permitted"}]}}
    assert server_message(json.dumps(nested).encode()) == "Extra inputs are not permitted"
    assert len(server_message(json.dumps({"error": "x" * 10_000}).encode())) == 300
    assert server_message(b"<h1>overloaded</h1>") == "<h1>overloaded</h1>"


def test_a_refusal_of_the_older_name_is_known_by_the_newer_one():
    words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    assert wants_newer_length(400, words) and not wants_newer_length(500, words)
    assert not wants_newer_length(400, "the prompt is too long")
