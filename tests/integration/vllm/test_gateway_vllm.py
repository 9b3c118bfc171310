"""The gateway before a real vLLM: the same answer as without it, its counts, and an end when the client leaves."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backend.gateway.routes import Upstream
from backend.serving.vllm import VllmServer
from tests.helpers.running_gateway import Connection, ask, client_key, require_ok, running_gateway
from tests.homes import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
PROMPT = {"prompt": "def main():\n", "temperature": 0, "max_tokens": 24, "stream": True}
PATH = "/v1/completions"


@pytest.fixture
def upstream(vllm_server: VllmServer) -> Upstream:
    base = vllm_server.url.removesuffix("/v1")
    return Upstream(
        name="served", source="starter", served_name=vllm_server.served_name, base=base, key=vllm_server.key, job="j-1"
    )


def answer(chunks: list[bytes]) -> str:
    """Return the text of all events, each of which must have come as a chunk of its own. A server that lags puts
    several tokens into one event."""
    *events, done = chunks
    assert done == b"data: [DONE]\n\n" and all(event.startswith(b"data: {") for event in events), chunks
    documents: list[dict[str, Any]] = [json.loads(event.removeprefix(b"data: ")) for event in events]
    return "".join(document["choices"][0]["text"] for document in documents if document["choices"])


def test_an_answer_is_that_of_the_server_itself(upstream: Upstream, tmp_path: Path) -> None:
    port, body = int(upstream.base.rpartition(":")[2]), PROMPT | {"stream_options": {"include_usage": True}}
    direct = require_ok(ask(port, PATH, body | {"model": upstream.served_name}, authorization=f"Bearer {upstream.key}"))
    with running_gateway([upstream], tmp_path, [client_key()]) as running:
        through = require_ok(ask(running.port, PATH, body | {"model": "starter"}))
        whole = require_ok(ask(running.port, PATH, body | {"model": "served", "stream": False, "stream_options": None}))
        assert ask(running.port, PATH, body | {"model": "served", "max_tokens": -1}).status == 400
    assert answer(through.chunks) == answer(direct.chunks) == json.loads(whole.body)["choices"][0]["text"]
    lines = running.log_lines()
    assert [(line["status"], line["completion_tokens"]) for line in lines] == [(200, 24), (200, 24), (400, None)]
    assert [line["prompt_tokens"] for line in lines[:2]] == [json.loads(whole.body)["usage"]["prompt_tokens"]] * 2


def test_a_client_that_leaves_ends_its_request_in_the_engine(upstream: Upstream, tmp_path: Path) -> None:
    with running_gateway([upstream], tmp_path) as running:
        with closing(Connection(running.port)) as client:
            client.send(PATH, PROMPT | {"model": "served", "max_tokens": 1900, "ignore_eos": True})
            client.read_head()
            assert client.read_chunk()
            assert count_running(upstream) == 1
        eventually("the request ended", lambda: count_running(upstream) == 0)
    (line,) = running.log_lines()
    assert line["error"] == "client_left"


def count_running(upstream: Upstream) -> float:
    """Return how many requests the engine is working on."""
    with closing(http.client.HTTPConnection(upstream.base.removeprefix("http://"), timeout=120)) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {upstream.key}"})
        text = connection.getresponse().read().decode()
    values = [line.split()[-1] for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(map(float, values))
