"""Load on an endpoint of SageMaker: signed requests, AWS's event stream read as server-sent events are, every way it
fails."""

from __future__ import annotations

import json
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.aws.sagemaker import Service
from backend.domain.errors import AccessRefused
from backend.domain.load import aws_event_stream, sagemaker_errors
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan, RequestRecord
from backend.endpoint import bearer, completion, metrics, models, parse_address
from backend.evaluate.load import run_level
from backend.evaluate.load.parse import make_record
from tests.endpoints_in_service import in_service
from tests.fakes.running import running, write_prompts
from tests.fakes.sagemaker import event_stream as aws_writes
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws
from tests.helpers.deployment_cases import PLAIN
from tests.unit.evaluate.exchanges import chunk, event, exchange

__all__ = ["aws"]

pytestmark = pytest.mark.process
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\n"
    b"X-Amzn-SageMaker-Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"
DEPLOYMENT = PLAIN.model_copy(update={"region": "us-east-1"})


def part(data: bytes) -> bytes:
    return chunk(aws_writes.part(data))


def read(*reads: bytes, status: str = "done") -> RequestRecord:
    return make_record(exchange(*reads, head=HEAD, status=status), sagemaker=True)


# The event stream


def test_an_event_has_the_time_of_the_read_that_brought_the_message_it_lies_in() -> None:
    first, second = part(event("a", 1)), part(event("b", 2))
    content = read(first, second[:-3], second[-3:], part(b"data: [DONE]\n\n") + LAST)
    assert (content.status, content.text, content.chunk_times, content.chunk_tokens) == (
        "ok",
        "ab",
        (2.0, 4.0),
        (1.0, 2.0),
    )


def test_an_event_in_two_parts_arrives_with_its_second() -> None:
    whole = event("a", 1)
    content = read(part(whole[:9]), part(whole[9:]), part(b"data: [DONE]\n\n") + LAST)
    assert (content.status, content.first_content) == ("ok", 3.0)


@given(
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6),
    st.integers(1, 40),
    st.lists(st.integers(1, 5000)),
)
def test_however_aws_and_the_network_cut_it_the_record_says_the_same(
    words: list[str], size: int, places: list[int]
) -> None:
    inner = b"".join(event(word, n) for n, word in enumerate(words, 1)) + b"data: [DONE]\n\n"
    raw = b"".join(part(inner[at : at + size]) for at in range(0, len(inner), size)) + LAST
    edges = [0, *sorted({place % len(raw) for place in places} - {0}), len(raw)]
    content = read(*(raw[a:b] for a, b in pairwise(edges)))
    assert (content.status, content.text, content.output_tokens) == ("ok", "".join(words), len(words))
    assert list(content.chunk_times) == sorted(content.chunk_times)


def test_a_stream_that_says_why_it_ends_keeps_what_came() -> None:
    ends = chunk(aws_writes.exception("ModelStreamError", Message="reset by peer", ErrorCode="StreamBroken"))
    content = read(part(event("a", 1)), ends + LAST)
    assert (content.status, content.text) == ("server_error", "a")
    assert content.error == (
        "The answer broke off (StreamBroken): the connection between SageMaker and the container broke; reset by peer."
    )


def test_a_stream_with_a_wrong_checksum_is_malformed() -> None:
    flawed = bytearray(aws_writes.part(event("a", 1)))
    flawed[30] ^= 1
    content = read(chunk(bytes(flawed)), LAST)
    assert (content.status, content.error) == ("malformed", "a message of the event stream has a wrong checksum")


def test_headers_of_every_type_are_passed_over() -> None:
    values = {0: b"", 1: b"", 2: b"x", 3: b"xx", 4: b"xxxx", 5: b"x" * 8, 6: b"\0\3abc", 8: b"x" * 8, 9: b"x" * 16}
    named = b"".join(b"\2h%d" % kind + bytes([kind]) + value for kind, value in values.items())
    plain = aws_writes.part(b"p")
    size = int.from_bytes(plain[4:8])
    prelude = struct.pack(">II", len(plain) + len(named), size + len(named))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + named + plain[12:-4]
    (result,) = aws_event_stream.parse_messages(whole + struct.pack(">I", zlib.crc32(whole)))
    assert (result.payload, result.headers[":event-type"]) == (b"p", "PayloadPart")


# The account


def loaded(account: Account, folder: Path, name: str, **changed: Any) -> list[RequestRecord]:
    chosen = {
        "url": f"sagemaker://us-east-1/{name}",
        "model": "model",
        "load": Load("closed", 2),
        "requests": 4,
        "max_tokens": 6,
        "prompts": write_prompts(folder, {"prompt": "one"}, {"prompt": "two"}),
        "warmup_requests": 0,
    }
    return run_level(LoadPlan(**(chosen | changed)), folder / "level")[0]


def test_botocore_reads_the_fakes_stream_and_sends_what_we_send(aws: Account, tmp_path: Path) -> None:
    name = in_service(aws, DEPLOYMENT, split=11)
    loaded(aws, tmp_path, name, requests=1, load=Load("closed", 1))
    ours = aws.requests_for("InvokeEndpointWithResponseStream")[-1]
    client = Service("sagemaker-runtime", "us-east-1").client
    body = b'{"model":"model","prompt":"one","max_tokens":6,"stream":true}'
    answer = client.invoke_endpoint_with_response_stream(EndpointName=name, ContentType="application/json", Body=body)
    text = b"".join(each["PayloadPart"]["Bytes"] for each in answer["Body"])
    assert text.startswith(b"data: ") and text.endswith(b"data: [DONE]\n\n")
    assert aws.requests_for("InvokeEndpointWithResponseStream")[-1] == ours


def test_load_on_an_endpoint_counts_and_stamps_as_on_the_container_itself(aws: Account, tmp_path: Path) -> None:
    with running("exact_server.py", "--ttft-ms", 5, "--rate", 400) as url:
        name = in_service(aws, DEPLOYMENT, url=url)
        result = loaded(aws, tmp_path, name)
    assert [(each.status, each.output_tokens, each.token_times, len(each.chunk_times)) for each in result] == [
        ("ok", 6, "continuous", 6)
    ] * 4
    for each, sent in zip(
        sorted(result, key=lambda each: each.sent or 0.0), aws.tables["sent"]["answers"], strict=True
    ):
        assert each.sent is not None and each.sent < sent[0]
    arrived = sorted(time for each in result for time in each.chunk_times)
    left = sorted(time for sent in aws.tables["sent"]["answers"] for time in sent)
    assert all(later >= earlier for earlier, later in zip(left, arrived, strict=False))


def test_a_container_that_takes_no_counts_under_way_is_asked_for_less(aws: Account, tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        name = in_service(aws, DEPLOYMENT, url=url)
        result = loaded(aws, tmp_path, name, model="no_continuous")
    assert {each.status for each in result} == {"ok"}
    assert {each.token_times for each in result} == {"final"}


def test_what_is_asked_beside_the_load_is_signed_too(aws: Account) -> None:
    url = f"sagemaker://us-east-1/{in_service(aws, DEPLOYMENT)}"
    assert (
        completion(url, {"model": "model", "prompt": "one", "max_tokens": 3})["choices"][0]["text"]
        == " four, five, six,"
    )
    assert models(url) == ["model"] and metrics(url) is None
    assert bearer("SECRET_OF_ANOTHER", parse_address(url)) is None
    assert str(parse_address(url)) == f"sagemaker:{DEPLOYMENT.endpoint}@us-east-1"


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (Fault("ThrottlingException", times=9), "http_400", "SageMaker throttles the requests (ThrottlingException)"),
        (
            Fault("ModelNotReadyException", times=9),
            "http_429",
            "The endpoint's model is not ready (ModelNotReadyException)",
        ),
        (
            Fault("AccessDeniedException", times=9),
            "http_400",
            "InvokeEndpoint and sagemaker:InvokeEndpointWithResponseStream",
        ),
        (Fault("ExpiredTokenException", times=9), "http_400", "The AWS credentials in use have expired"),
        (Fault("UnrecognizedClientException", times=9), "http_400", "does not accept the credentials in use"),
        (Fault("ServiceUnavailable", times=9), "http_503", "SageMaker itself failed (HTTP 503, ServiceUnavailable)"),
        (Fault(502, times=9), "http_502", "SageMaker itself failed (HTTP 502)"),
        (Fault("cut", times=9), "truncated", "the connection was closed before the answer was complete"),
    ],
)
def test_each_failure_is_a_failed_request_with_its_sentence(
    aws: Account, tmp_path: Path, fault: Fault, status: str, words: str
) -> None:
    name = in_service(aws, DEPLOYMENT)
    fault.after = 1
    aws.faults.append(fault)
    sound, failed = loaded(aws, tmp_path, name, requests=2, load=Load("closed", 1))
    assert (sound.status, failed.status) == ("ok", status)
    assert failed.error is not None and words in failed.error


def test_an_answer_that_the_container_breaks_off_is_a_failed_request(aws: Account, tmp_path: Path) -> None:
    breaks = {"after": 2, "kind": "InternalStreamFailure", "Message": ""}
    (result,) = loaded(aws, tmp_path, in_service(aws, DEPLOYMENT, breaks=breaks), requests=1, load=Load("closed", 1))
    assert (result.status, len(result.chunk_times)) == ("server_error", 2)
    assert (
        result.error
        == "The answer broke off (InternalStreamFailure): SageMaker itself failed while the answer was streamed."
    )


def test_what_is_not_in_service_and_what_the_container_refuses_are_said(aws: Account, tmp_path: Path) -> None:
    (result,) = loaded(aws, tmp_path, "whetstone-gone", requests=1, load=Load("closed", 1))
    assert (result.status, result.error) == (
        "http_400",
        "There is no such endpoint in service in this region: see `whetstone endpoints list`.",
    )
    inner = {"OriginalStatusCode": 404, "OriginalMessage": "The model `x` does not exist."}
    body = json.dumps({"Message": "Received client error (404) from primary", **inner}).encode()
    fields = {sagemaker_errors.ERROR_TYPE_HEADER: "ModelError:http://internal.amazon.com/coral/"}
    assert (
        sagemaker_errors.describe_refusal(424, fields, body)
        == "The container answered with HTTP 404: The model `x` does not exist."
    )
    assert sagemaker_errors.container_status(424, body) == 404


def test_without_credentials_nothing_is_sent(aws: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessRefused, match="There are no AWS credentials"):
        loaded(aws, tmp_path, "whetstone-x")
    assert not aws.log
