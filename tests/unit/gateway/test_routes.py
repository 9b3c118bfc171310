"""Which server answers for a model name, and what of an answer is read."""

from __future__ import annotations

import pytest

from backend.gateway.admission import is_local
from backend.gateway.answer_ends import KEPT_BYTES, AnswerEnds, Usage
from backend.gateway.passing import parse_request
from backend.gateway.refusals import Refusal
from backend.gateway.routes import RouteTable, Upstream


def server(name: str, source: str, since: int = 0, job: str = "j-1") -> Upstream:
    return Upstream(name=name, source=source, served_name=name, base="http://127.0.0.1:9", job=job, since=since)


def test_a_server_has_its_name_and_its_id_and_the_latest_job_wins() -> None:
    old, new = server("awq", "a-1", 10), server("awq", "a-2", 20, "j-2")
    for order in ([old, new], [new, old]):
        table = RouteTable(order)
        assert table.choose("awq") is new and table.choose("a-2") is new
        assert table.choose("a-1") is old, "the older is reached by its id"
        assert table.names == ["awq", "a-2", "a-1"] and table.choose("AWQ") is None


def test_a_name_goes_before_the_id_of_another() -> None:
    named, other = server("a-2", "a-1"), server("x", "a-2", 5)
    assert RouteTable([named, other]).choose("a-2") is named


def test_the_list_has_a_row_for_each_name() -> None:
    rows = RouteTable([server("m", "m"), server("awq", "a-1", 7)]).document()["data"]
    assert [(row["id"], row["created"]) for row in rows] == [("awq", 7), ("m", 0), ("a-1", 7)]


def test_an_unknown_model_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(Refusal, match="nothing is served now, so start a server first"):
        RouteTable().require("m")
    many = RouteTable(server(f"m{number}", f"m{number}") for number in range(30))
    with pytest.raises(Refusal, match=r"m0, m1, .*m19 and 10 more\.") as refused:
        many.require("x" * 5000)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'], (7, 3)),
        ([b'data: {"usage": {"prompt_tokens": 7, "details": {"a": 1}, "completion_tokens"', b": 3}}\n\n"], (7, 3)),
        ([b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n' * 2, b'{"usage":{"prompt_tokens":4}}'], (4, None)),
        ([b'{"usage":{"prompt_tokens":7,"total_tokens":7},"data":[' + b"0.5," * KEPT_BYTES], (7, None)),
        ([b"0.5," * KEPT_BYTES, b'{"usage":{"prompt_tokens":7}}', b" " * (KEPT_BYTES - 40)], (7, None)),
        ([b'{"text":"\\"usage\\":{\\"prompt_tokens\\":9}"}'], (None, None)),
        ([b'{"usage":null}'], (None, None)),
        ([b'{"usage":{"prompt_tokens":true,"completion_tokens":-1}}'], (None, None)),
        ([b'"usage":{' * 400], (None, None)),
        ([], (None, None)),
    ],
)
def test_token_counts_are_read_from_the_ends_of_an_answer(
    chunks: list[bytes], usage: tuple[int | None, int | None]
) -> None:
    ends = AnswerEnds()
    for chunk in chunks:
        ends.add(chunk)
    assert ends.usage() == Usage(*usage) and ends.size == sum(map(len, chunks))


@pytest.mark.parametrize(
    ("chunks", "at_end"), [([], True), ([b"data: 1\n\n"], True), ([b"a\r\n\r", b"\n"], True), ([b"data: 1\n"], False)]
)
def test_the_end_of_an_event_is_seen_across_chunks(chunks: list[bytes], at_end: bool) -> None:
    ends = AnswerEnds()
    for chunk in chunks:
        ends.add(chunk)
    assert ends.at_event_end is at_end


def test_only_the_model_of_a_request_is_changed() -> None:
    request = parse_request(b'{"model":"awq", "seed": 12345678901234567890, "x": "\\ud800"}')
    assert request.body_for(server("awq", "a-1")) is request.body
    body = request.body_for(server("other", "a-1").model_copy(update={"served_name": "other"}))
    assert body == b'{"model": "other", "seed": 12345678901234567890, "x": "\\ud800"}'


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("//localhost:8600", True),
        ("//[::1]:8600", True),
        ("http://127.0.0.1", True),
        ("null", False),
        ("//localhost.evil.example", False),
        ("//", False),
        ("//[:", False),
    ],
)
def test_only_names_of_loopback_are_this_machine(address: str, local: bool) -> None:
    assert is_local(address) is local
