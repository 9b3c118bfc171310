"""Conversations as the bytes that are sent: the same as writing all of it anew each turn, whatever the words are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.domain.workload.workload import Prompt
from backend.endpoint import parse_address
from backend.evaluate.load.answer_reader import words
from backend.evaluate.load.payload import Conversation, Payloads, encode

TURNS = st.lists(st.text(min_size=1), min_size=1, max_size=4)


def opened(endpoint: str, turns: list[str], system: str | None) -> tuple[Payloads, Conversation]:
    plan = LoadPlan(url="http://h:1", model="m", load=Load("closed", 1), requests=1, prompts="p", endpoint=endpoint)  # type: ignore[arg-type]
    payloads = Payloads(
        plan,
        [Prompt(prompt=turns[0], turns=tuple(turns), system=system, max_tokens=9)],
        parse_address(plan.url),
        None,
        "final",
    )
    talk = payloads.start_conversation(0, 5, 2)
    assert talk is not None
    return payloads, talk


def body(payloads: Payloads, talk: Conversation) -> dict[str, object]:
    head, _, sent = payloads.next_turn_request(talk, 7).partition(b"\r\n\r\n")
    assert head.endswith(b"Content-Length: %d" % len(sent))
    parsed: dict[str, object] = json.loads(sent)
    return parsed


REST = {
    "model": "m",
    "max_tokens": 9,
    "temperature": 0.0,
    "stream": True,
    "stream_options": {"include_usage": True},
    "seed": 7,
}


@given(TURNS, st.none() | st.text(), st.lists(st.text(min_size=1), min_size=4, max_size=4))
def test_a_chat_is_all_that_was_said_so_far(turns: list[str], system: str | None, answers: list[str]) -> None:
    created, talk = opened("chat", turns, system)
    messages = [{"role": "system", "content": system}] if system else []
    for number, (turn, answer) in enumerate(zip(turns, answers, strict=False), 1):
        messages.append({"role": "user", "content": turn})
        assert body(created, talk) == REST | {"messages": messages}
        assert talk.add_answer(encode(answer)) == (number < len(turns))
        messages.append({"role": "assistant", "content": answer})


@given(TURNS, st.none() | st.text(), st.lists(st.text(min_size=1), min_size=4, max_size=4))
def test_completions_are_the_words_each_from_a_new_line(
    turns: list[str], system: str | None, answers: list[str]
) -> None:
    created, talk = opened("completions", turns, system)
    messages = [system] if system else []
    for turn, answer in zip(turns, answers, strict=False):
        messages.append(turn)
        assert body(created, talk) == REST | {"prompt": "\n".join(messages)}
        talk.add_answer(encode(answer))
        messages.append(answer)


def test_an_answer_without_words_ends_a_conversation() -> None:
    _, talk = opened("chat", ["a", "b"], None)
    assert talk.has_next_turn
    assert not talk.add_answer(encode(""))


@pytest.mark.parametrize(("turns", "result"), [(["a", "b"], True), (["a"], False)])
def test_only_turns_that_follow_need_a_reader(turns: list[str], result: bool) -> None:
    created, _ = opened("chat", turns, None)
    assert created.has_follow_ups is result


def answer(status: str, document: object) -> bytes:
    text = json.dumps(document).encode()
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(text),
        text,
    )


def test_the_words_of_an_answer_are_those_of_its_record_and_none_where_it_failed() -> None:
    whole = answer("200 OK", {"choices": [{"text": "gr\ud83d\ude00\ud800", "finish_reason": "stop"}]})
    assert words(whole) == "gr\U0001f600\ufffd"
    assert (
        words(answer("503 Busy", {"error": "busy"}))
        == words(answer("200 OK", {"error": "inside"}))
        == words(b"SSH-2.0")
        == ""
    )
