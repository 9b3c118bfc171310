"""Kept bytes -> records: events, content, tokens, and the time of each read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import EndpointUnreachable, InvalidWorkload, RequestError
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.domain.load.server_events import parse_server_events
from backend.domain.workload.workload import Prompt
from backend.endpoint import bearer, check_endpoint, parse_address, reason
from backend.evaluate.load.audit import make_audit
from backend.evaluate.load.framing import Head
from backend.evaluate.load.level import FinishedLevel
from backend.evaluate.load.parse import assistant_words, is_over, make_record
from backend.evaluate.load.payload import Payloads, read_prompts
from backend.evaluate.load.stream import LONGEST_PAUSE_S, PAUSE_S, pause_s
from tests.unit.evaluate.exchanges import chunk, event, exchange

texts = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6)


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def plan(**changed: Any) -> LoadPlan:
    return LoadPlan(
        **({"url": "http://h:1", "model": "m", "load": Load("closed", 2), "requests": 4, "prompts": "p"} | changed)
    )


def test_each_content_chunk_has_the_time_of_its_read_and_its_running_count():
    record = make_record(exchange(chunk(event("", 0)), chunk(event("a", 2)), chunk(event("b", 5)), END))
    assert (record.status, record.text, record.chunk_times, record.chunk_tokens) == ("ok", "ab", (3.0, 4.0), (2.0, 5.0))
    assert (record.first_content, record.last_content, record.end) == (3.0, 4.0, 5.0)
    assert (record.prompt_tokens, record.output_tokens, record.token_times) == (3, 5, "continuous")


def test_an_event_cut_in_two_arrives_with_its_second_half():
    whole = chunk(event("a", 1))
    assert make_record(exchange(whole[:20], whole[20:], END)).first_content == 3.0


def test_two_sends_in_one_read_are_coalesced_and_two_events_in_one_send_are_not():
    apart = make_record(exchange(chunk(event("a", 1)) + chunk(event("b", 2)), END))
    together = make_record(exchange(chunk(event("a", 1) + event("b", 2)), END))
    assert (apart.reads, apart.coalesced) == (1, 1)
    assert (together.reads, together.coalesced) == (1, 0)


@given(texts, st.lists(st.integers(1, 5000), max_size=10))
def test_wherever_the_network_cuts_the_record_says_the_same(words, places):
    raw = b"".join(chunk(event(word, n)) for n, word in enumerate(words, 1)) + END
    edges = [0, *sorted({place % len(raw) for place in places} - {0}), len(raw)]
    reads = [raw[a:b] for a, b in pairwise(edges)]
    record = make_record(exchange(*reads))
    assert (record.status, record.text, record.output_tokens) == ("ok", "".join(words), len(words))
    assert list(record.chunk_times) == sorted(record.chunk_times)
    assert record.chunk_tokens == tuple(range(1, len(words) + 1))
    assert record.last_content is not None
    assert record.last_content <= record.end


@given(st.binary(max_size=300), st.sampled_from(["done", "timeout", "reset", "truncated"]))
def test_no_bytes_whatever_raise(garbage: bytes, status: str):
    assert make_record(exchange(garbage, status=status)).status != "ok" or b"[DONE]" in garbage
    assert make_record(exchange(garbage, status=status, head=b"")).status != "ok"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda s: (
            st.lists(s)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "usage", "text", "delta", "content", "error", "message", "completion_tokens"]
                ),
                s,
            )
        ),
    )
)
def test_no_document_whatever_raises(document: Any):
    data = chunk(b"data: " + json.dumps(document).encode() + b"\n\n")
    assert make_record(exchange(data, END)).status in {"ok", "malformed", "server_error"}


def test_a_total_alone_is_one_token_a_chunk_where_the_numbers_agree():
    total = chunk(b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}\n\n')
    record = make_record(exchange(chunk(event("a")), chunk(event("b")), total, END))
    assert (record.token_times, record.chunk_tokens, record.output_tokens) == ("final", (1.0, 2.0), 3)


def test_a_total_alone_is_spread_evenly_where_they_do_not():
    total = chunk(b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}\n\n')
    assert make_record(exchange(chunk(event("a")), chunk(event("b")), total, END)).chunk_tokens == (4.0, 8.0)


def test_reasoning_is_content():
    delta = b'data: {"choices": [{"delta": {"role": "assistant", "content": null, "reasoning_content": "hm"}}]}\n\n'
    assert make_record(exchange(chunk(delta), END)).text == "hm"


def test_what_the_assistant_said_is_without_reasoning_and_tool_calls():
    deltas = [
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"content": "Yes"},
        {"tool_calls": [{"function": {"name": "f"}}]},
    ]
    chunks = [chunk(b"data: %s\n\n" % json.dumps({"choices": [{"delta": delta}]}).encode()) for delta in deltas]
    created = exchange(*chunks, END)
    assert (make_record(created).text, assistant_words(created)) == ("hmYesf", "Yes")
    assert assistant_words(exchange(*chunks)) == "", "an answer that is cut off is not sent back"


def test_a_tool_call_alone_is_an_answer_with_the_tokens_of_its_usage():
    call = {"tool_calls": [{"index": 0, "function": {"name": "get_weather", "arguments": "{}"}}]}
    last = {
        "choices": [{"delta": {}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 9},
    }
    documents = [{"choices": [{"delta": call}]}, last]
    record = make_record(
        exchange(*(chunk(b"data: %s\n\n" % json.dumps(document).encode()) for document in documents), END)
    )
    assert (record.status, record.output_tokens, record.first_content) == ("ok", 9, 2.0)


@pytest.mark.parametrize(
    ("event_bytes", "words"),
    [
        (b'event: error\ndata: {"message":"CUDA out of memory"}\n\n', "CUDA out of memory"),
        (b"event: error\ndata: worker died\n\n", "worker died"),
        (b'error: {"code":500,"message":"slot unavailable"}\n\n', "slot unavailable"),
        (b'data: {"object":"error","message":"engine died"}\n\n', "engine died"),
    ],
)
def test_the_servers_own_error_fails_a_request_though_text_came_before(event_bytes: bytes, words: str):
    record = make_record(exchange(chunk(event("a", 1)), chunk(event_bytes), END))
    assert (record.status, record.error) == ("server_error", words)


@pytest.mark.parametrize(
    "content",
    [b'event: ping\ndata: {"type":"ping"}\n\n', b"data: : OPENROUTER PROCESSING\n\n", b": x\n\n", b"data:\n\n"],
)
def test_pings_and_comments_are_passed_over(content: bytes):
    record = make_record(exchange(chunk(content), chunk(event("a", 1)), END))
    assert (record.status, record.text, record.first_content) == ("ok", "a", 3.0)


FINISHED = chunk(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n')
COUNTED = chunk(b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n')


@pytest.mark.parametrize(
    ("chunks", "over", "over_late"),
    [
        ([chunk(event("a"))], False, False),
        ([chunk(event("a")), FINISHED], False, True),
        ([chunk(event("a")), FINISHED, COUNTED], True, True),
        ([chunk(event("a")), chunk(b"data: [DONE]\n\n")], True, True),
        ([chunk(event("a")), chunk(b"event: error\ndata: {}\n\n")], True, True),
        ([chunk(event('say "finish_reason": "stop"', 1))], False, False),
    ],
)
def test_an_answer_under_way_is_over_by_what_it_says(chunks: list[bytes], over: bool, over_late: bool):
    created = exchange(*chunks)
    assert (is_over(created, late=False), is_over(created, late=True)) == (over, over_late)


@pytest.mark.parametrize("counts", [[3, 2], [1, 5]])
def test_counts_that_fall_or_pass_the_total_are_no_running_counts(counts: list[int]):
    total = chunk(b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\n')
    record = make_record(exchange(*(chunk(event("a", count)) for count in counts), total, END))
    assert (record.token_times, record.chunk_tokens) == ("final", (2.0, 4.0))


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        ("1", 1.0),
        ("0.5", 0.5),
        ("0", PAUSE_S),
        ("", PAUSE_S),
        ("soon", PAUSE_S),
        ("nan", PAUSE_S),
        ("inf", PAUSE_S),
        ("9999", LONGEST_PAUSE_S),
        ("Wed, 21 Oct 2026 07:28:05 GMT", 5.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", PAUSE_S),
        ("Wed, 99999999999 Oct 2026 07:28:05 GMT", PAUSE_S),
        ("-3", PAUSE_S),
    ],
)
def test_retry_after_is_read_as_seconds_a_fraction_or_a_date(field: str, seconds: float):
    head = Head(429, {"retry-after": field, "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0)
    assert pause_s(head) == seconds


def test_half_a_character_a_chunk_is_joined_and_a_lone_half_replaced():
    halves = [chunk(b'data: {"choices": [{"text": "%s"}]}\n\n' % half) for half in (rb"\ud83d", rb"\ude00", rb"\ud83d")]
    record = make_record(exchange(*halves, END))
    assert record.text == "\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}"
    assert record.model_dump_json()


def test_bottomless_json_is_malformed():
    assert make_record(exchange(chunk(b"data: " + b"[" * 200_000 + b"\n\n"), END)).status == "malformed"


def test_what_came_before_an_error_is_kept():
    record = make_record(exchange(chunk(event("a", 1)), status="reset"))
    assert (record.status, record.text, record.output_tokens) == ("reset", "a", 1)


def test_the_token_is_blotted_out_of_an_error():
    body = b'{"error": {"message": "bad key sk-123"}}'
    raw = b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    record = make_record(exchange(head=raw), secret="sk-123")
    assert (record.status, record.error) == ("http_401", "bad key ***")


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"])
def test_events_end_with_any_line_end(eol: str):
    body = eol.join([": comment", "event: x", "data: a", "data:b", "", "id: 1", "", "data: c", ""])
    assert [event[:2] for event in parse_server_events(body.encode())] == [("x", b"a\nb"), ("", b"c")]


def test_an_event_ends_after_its_blank_line():
    assert list(parse_server_events(b"data: a\n\ndata: b\n\n")) == [("", b"a", 9), ("", b"b", 18)]


def run(**changed: Any) -> FinishedLevel:
    fields = {
        "exchanges": [],
        "wall_s": 10.0,
        "cpu_s": 1.0,
        "lags_s": [0.001] * 200,
        "reconnects": 0,
        "refused_options": False,
    }
    return FinishedLevel(**(fields | changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cpu_s": 9.5}, "95% of a core"),
        ({"lags_s": [0.02] * 200}, "ms late (p50)"),
        ({"lags_s": [0.001] * 190 + [0.5] * 10}, "ms late (p99)"),
    ],
)
def test_a_client_that_was_late_says_so(changed: dict[str, Any], words: str):
    result = make_audit(plan(), run(**changed), [], 0.0)
    assert result.client_limited and result.late
    assert result.reason is not None
    assert words in result.reason


def test_a_client_with_slack_is_not_limited():
    result = make_audit(plan(usage="final"), run(), [], 0.25)
    assert (result.client_limited, result.reason, result.usage, result.parse_cpu_s) == (False, None, "final", 0.25)


def test_streams_that_stood_idle_limit_the_level():
    busy = [make_record(exchange(chunk(event("a", 1)), END)) for _ in range(2)]
    idle = [row.model_copy(update={"stream": n, "sent": 0.0, "end": 1.0}) for n, row in enumerate(busy)]
    later = [row.model_copy(update={"sent": 1.5, "end": 2.0}) for row in idle]
    result = make_audit(plan(), run(), idle + later, 0.0)
    assert result.achieved_concurrency == pytest.approx(1.5)
    assert (result.reason, result.late) == ("only 1.5 of 2 streams were busy on average", False)


def test_fewer_requests_than_streams_limit_the_level():
    assert make_audit(plan(requests=1), run(), [], 0.0).reason == "1 requests cannot keep 2 streams busy"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h:1", "/v1/completions"),
        ("http://h:1/", "/v1/completions"),
        ("http://h:1/v1", "/v1/completions"),
        ("http://h:1/v1/chat/completions", "/v1/completions"),
        ("https://h/team/v1/", "/team/v1/completions"),
        ("http://h:1/openai", "/openai/v1/completions"),
    ],
)
def test_an_address_leads_to_the_endpoint_with_or_without_v1(url: str, path: str):
    assert parse_address(url).path("completions") == path


def test_an_address_names_port_and_host():
    assert parse_address("https://[::1]/v1")[:4] == ("::1", 443, True, "[::1]")
    assert parse_address("http://h:8000")[:4] == ("h", 8000, False, "h:8000")


@pytest.mark.parametrize("url", ["h:8000", "http://", "http://h:99999", "ftp://h"])
def test_what_is_no_address_is_refused(url: str):
    with pytest.raises(RequestError, match="address"):
        parse_address(url)


def test_an_unknown_host_is_told_in_one_sentence():
    with pytest.raises(EndpointUnreachable, match=r"cannot be reached .*check that the server is running"):
        check_endpoint("http://host.invalid:1")


def test_a_token_variable_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WHETSTONE_TOKEN_X", raising=False)
    with pytest.raises(RequestError, match="WHETSTONE_TOKEN_X"):
        bearer("WHETSTONE_TOKEN_X", parse_address("http://127.0.0.1"))
    monkeypatch.setenv("WHETSTONE_TOKEN_X", "a\r\nEvil: 1")
    with pytest.raises(RequestError, match="characters"):
        bearer("WHETSTONE_TOKEN_X", parse_address("http://127.0.0.1"))


def test_a_failure_has_a_name_of_few_words():
    assert reason(ConnectionRefusedError(111, "Connection refused")) == "connection refused"
    assert reason(OSError(113, "No route to host")) == "no route to host"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "Line 2 .* not JSON"),
        ("[1]", 'Line 2 .* no "prompt"'),
        ('{"text": "x"}', 'no "prompt"'),
        ('{"prompt": ""}', 'no "prompt"'),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens"),
    ],
)
def test_a_wrong_line_of_a_workload_is_named(tmp_path: Path, line: str, words: str):
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(InvalidWorkload, match=words):
        read_prompts(path)


def test_a_workload_that_is_absent_empty_or_binary_is_refused(tmp_path: Path):
    path = tmp_path / "w.jsonl"
    for content, words in [(None, "cannot be read"), (b"\n", "is empty"), (b"\xff\xfe", "not UTF-8")]:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidWorkload, match=words):
            read_prompts(path)


def test_a_trace_comes_in_order_of_time_and_each_line_has_one(tmp_path: Path):
    path = tmp_path / "w.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(at), "timestamp": at}) + "\n" for at in (2.0, 0.5, 1.0)))
    assert [prompt.prompt for prompt in read_prompts(path, trace=True)] == ["0.5", "1.0", "2.0"]
    path.write_text('{"prompt": "a", "timestamp": 1}\n{"prompt": "b"}\n')
    with pytest.raises(InvalidWorkload, match='1 of 2 prompts of the trace have no "timestamp", the first is number 2'):
        read_prompts(path, trace=True)


def test_a_request_is_what_the_plan_asks():
    verdict = plan(endpoint="chat", temperature=0.5, top_p=0.9, ignore_eos=True)
    request = Payloads(verdict, [Prompt(prompt="hi", max_tokens=9)], parse_address(verdict.url), "t", "final").request(
        0, 7
    )
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"\r\nAuthorization: Bearer t\r\n" in head
    assert head.endswith(b"Content-Length: %d" % len(body))
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "stream": True,
        "top_p": 0.9,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
    }
