"""sagemaker-runtime: signed invocations of endpoints in service, whole or as an event stream.

What stands behind an endpoint is a container of a few words (lever `container`: `seconds` that each takes by the
metrics, the `status` with which it fails), or (`url`) an OpenAI-compatible server, to which the request is forwarded as
SageMaker does. `split`: at most so many bytes a PayloadPart. `breaks`: {"after": parts, and "kind" with the exception's
other fields, or nothing: then the connection closes}. When each part was written stands in the table `sent`, a list an
answer, in seconds of `time.perf_counter`.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.sagemaker import event_stream, signature
from tests.fakes.sagemaker.account import ACCOUNT_ID, Account, Cut, Refused, Request, Response, route
from tests.fakes.sagemaker.endpoints import status, write

JSON = {"Content-Type": "application/json"}


@route("InvokeEndpoint", "POST", r"/endpoints/(?P<name>[^/]+)/invocations")
def invoke(account: Account, request: Request) -> Response:
    _admit(account, request)
    if "url" in account.tables["container"]:
        _, pieces = _forward(account, request)
        return Response(b"".join(pieces), headers=JSON)
    parsed = json.loads(request.body)
    text = _text(account)
    values = {"message": {"role": "assistant", "content": text}} if "messages" in parsed else {"text": text}
    document = {
        "model": parsed["model"],
        "choices": [{"index": 0, **values, "finish_reason": "length"}],
        "usage": _usage(len(text.split())),
    }
    return Response(json.dumps(document).encode(), headers=JSON)


@route("InvokeEndpointWithResponseStream", "POST", r"/endpoints/(?P<name>[^/]+)/invocations-response-stream")
def stream(account: Account, request: Request) -> Response:
    _admit(account, request)
    if "url" in account.tables["container"]:
        kind, pieces = _forward(account, request)
    else:
        kind, pieces = "text/event-stream", _events(account, json.loads(request.body))
    headers = {"Content-Type": event_stream.CONTENT_TYPE, "X-Amzn-SageMaker-Content-Type": kind}
    return Response(headers=headers, chunks=_parts(account, pieces))


def _admit(account: Account, request: Request) -> None:
    signature.check(request)
    name = request.found["name"]
    if name not in account.tables["endpoints"] or status(account, account.tables["endpoints"][name]) != "InService":
        raise Refused("ValidationError", f"Endpoint {name} of account {ACCOUNT_ID} not found.")
    does = account.tables["container"]
    rows = account.tables["invocations"].setdefault(name, [])
    rows.append((account.clock.now, 1e6 * does.get("seconds", 0.25), does.get("status", 200) >= 500))
    if rows[-1][2]:
        raise _model_error(account, does["status"], "the container is broken")
    if account.tables["speculates"].get(name):
        write(
            account,
            name,
            "INFO SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 3.00 tokens/s, Drafted "
            "throughput: "
            "8.00 tokens/s, Accepted: 30 tokens, Drafted: 80 tokens, Per-position acceptance rate: 0.5, "
            "Avg Draft acceptance rate: 37.5%",
        )


def _forward(account: Account, request: Request) -> tuple[str, Iterator[bytes]]:
    """The type of the container's answer, and the answer as it comes; another status than 200 is a ModelError."""
    path = "/v1/chat/completions" if "messages" in json.loads(request.body) else "/v1/completions"
    connection = http.client.HTTPConnection(urlsplit(account.tables["container"]["url"]).netloc, timeout=30)
    connection.request("POST", path, request.body, JSON)
    answer = connection.getresponse()
    if answer.status != 200:
        with closing(connection):
            raise _model_error(account, answer.status, answer.read().decode())
    return answer.headers.get("Content-Type", ""), _read(connection, answer)


def _model_error(account: Account, status: int, message: str) -> Refused:
    document = {
        "ErrorCode": "CLIENT_ERROR_FROM_MODEL",
        "LogStreamArn": account.arn("log-group", "x", "logs"),
        "OriginalMessage": message,
        "OriginalStatusCode": status,
    }
    return Refused("ModelError", f"Received client error ({status}) from primary", 424, document)


def _read(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> Iterator[bytes]:
    with closing(connection), answer:
        yield from iter(lambda: answer.read1(65536), b"")


def _parts(account: Account, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Each with the time at which it goes."""
    does = account.tables["container"]
    breaks, sent = does.get("breaks", {}), []
    account.tables["sent"].setdefault("answers", []).append(sent)
    for piece in pieces:
        size = does.get("split") or len(piece)
        for first in range(0, len(piece), size):
            if breaks and len(sent) >= breaks["after"]:
                yield _end(breaks)
                return
            whole = event_stream.part(piece[first : first + size])
            sent.append(perf_counter())
            yield whole


def _end(breaks: dict[str, Any]) -> bytes:
    by_name = {name: value for name, value in breaks.items() if name not in {"after", "kind"}}
    if "kind" not in breaks:
        raise Cut
    return event_stream.exception(breaks["kind"], **by_name)


def _events(account: Account, values: dict[str, Any]) -> Iterator[bytes]:
    """Server-sent events of the container's few words, at once."""
    options = values.get("stream_options") or {}
    parts = _text(account).split()[: values["max_tokens"]]
    for number, word in enumerate(parts, 1):
        text = {"delta": {"content": f" {word}"}} if "messages" in values else {"text": f" {word}"}
        ended = {"finish_reason": "length" if number == len(parts) else None}
        usage = {"usage": _usage(number)} if options.get("continuous_usage_stats") else {}
        yield _event({"choices": [{"index": 0, **text, **ended}], **usage})
    if options.get("include_usage"):
        yield _event({"choices": [], "usage": _usage(len(parts))})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def _text(account: Account) -> str:
    return str(account.tables["container"].get("answer", " four, five, six,"))


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
