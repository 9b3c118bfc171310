"""Whetstone's server over the real OpenVINO GenAI, on a tiny GGUF file: routes, streams, probabilities, end."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend import settings
from backend.domain.errors import EngineMissing, ServerFailed
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence.findings import findings
from backend.domain.recipe.recipe import Serving
from backend.hardware.engine_status import engine_program
from backend.processes import list_tree
from backend.serving.openvino.server import OpenVinoServer
from backend.serving.openvino_program.pipeline import PROBED_EVERY
from tests import gguf_files, live_processes
from tests.tiny import tiny_llama

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def program() -> Path:
    """The interpreter of the environment, which `make test` does not install: its wheels have 90 MB."""
    try:
        return engine_program(settings.load(), "openvino")
    except EngineMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    folder = tiny_llama(tmp_path_factory.mktemp("model") / "tiny", intermediate=128)
    file = folder.parent / "tiny.gguf"
    gguf_files.write(file, folder, extra={"general.file_type": 3})
    serving = Serving(engine="openvino", threads=1, max_num_seqs=4, max_model_len=128, kv_cache_dtype="u8")
    return Variant(
        name="tiny",
        source="tiny",
        kind="model",
        model_path=str(folder),
        gguf=str(file),
        bytes_on_disk=file.stat().st_size,
        serving=serving,
    )


@pytest.fixture(scope="module")
def server(tiny: Variant, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenVinoServer]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with OpenVinoServer(tiny, program=program, log=log) as running:
        yield running


def send(server: OpenVinoServer, path: str, body: dict[str, Any], *, key: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server._port, timeout=60)
    headers = {"Authorization": f"Bearer {server.key if key is None else key}"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    status, reply = answer.status, answer.read()
    connection.close()
    return status, reply


def test_it_answers_counts_and_says_what_it_serves(server: OpenVinoServer, tiny: Variant) -> None:
    before = server.metrics()["generation_tokens"]
    reply = server.answer(
        "/v1/completions", {"prompt": "def add", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    )
    assert reply["usage"]["completion_tokens"] == 5 and server.metrics()["generation_tokens"] == before + 5
    proven = {finding.what: finding.proven for finding in findings(tiny, {}, [server.evidence()], [])}
    assert proven == {"quantization": True, "context": True, "streams": True, "kv_cache": True}
    assert send(server, "/v1/completions", {"prompt": "a"}, key="other")[0] == 401


def test_a_stream_is_the_whole_answer_in_pieces(server: OpenVinoServer) -> None:
    body = {"prompt": "def add", "max_tokens": 24, "temperature": 1.0, "seed": 7, "ignore_eos": True, "model": "tiny"}
    whole = server.answer("/v1/completions", body)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    status, stream = send(server, "/v1/completions", {**body, **options})
    events = [line.removeprefix("data: ") for line in stream.decode().splitlines() if line]
    documents = [json.loads(event) for event in events[:-1]]
    assert status == 200 and events[-1] == "[DONE]" and documents[-1]["usage"] == whole["usage"]
    choices = [document["choices"][0] for document in documents[:-1]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert choices[-1]["finish_reason"] == "length" and not any(choice["finish_reason"] for choice in choices[:-1])


def test_what_cannot_be_done_is_refused_in_openai_shape(server: OpenVinoServer) -> None:
    long = {"prompt": [5] * 100, "max_tokens": 29}
    for path, body, status in (
        ("/v1/completions", {"prompt": "a", "tools": [{}]}, 400),
        ("/v1/completions", long, 400),
        ("/v1/completions", {"prompt": [10**7]}, 400),
        ("/v1/completions", {"prompt": "a", "model": "other"}, 404),
        ("/v1/embeddings", {"input": "a"}, 404),
    ):
        refused, reply = send(server, path, body)
        assert refused == status and json.loads(reply)["error"]["message"]


def test_probabilities_of_a_prompt_are_those_of_its_answers(server: OpenVinoServer) -> None:
    tokens = server.prompt_tokens("def add(x): return x + 1  # and more", chat=False)
    positions = server.prompt_logprobs(tokens, 20)
    numbers = [number for number, position in enumerate(positions) if position]
    assert len(positions) == len(tokens) and numbers == list(range(PROBED_EVERY, len(tokens), PROBED_EVERY))
    position = positions[PROBED_EVERY]
    assert len(position) == 20 and sum(map(math.exp, position.values())) <= 1.001
    body = {"prompt": tokens[:PROBED_EVERY], "max_tokens": 1, "temperature": 0, "logprobs": 1, "return_token_ids": True}
    choice = server.answer("/v1/completions", body)["choices"][0]
    assert max(position, key=lambda token: position[token]) == str(choice["token_ids"][0])
    assert max(position.values()) == pytest.approx(choice["logprobs"]["token_logprobs"][0], abs=0.02)


def test_answers_as_token_ids(server: OpenVinoServer) -> None:
    prompts = [server.prompt_tokens(words, chat=False) for words in ("one", "two")]
    greedy = server.token_answers(prompts, 4)
    assert greedy == [server.token_answers([prompt], 4)[0] for prompt in prompts]
    assert len(server.token_answers(prompts[:1], 2, samples=3)) == 3


def test_a_client_that_leaves_ends_its_answer(server: OpenVinoServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server._port, timeout=60)
    body = {"prompt": "a", "max_tokens": 120, "ignore_eos": True, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {server.key}"})
    answer = connection.getresponse()
    answer.fp.readline()
    answer.close()
    connection.close()
    before = server.metrics()["generation_tokens"]
    server.answer("/v1/completions", {"prompt": "a", "max_tokens": 1})
    while b"openvino:requests_running 0" not in server._ask("/metrics")[1]:
        pass
    assert server.metrics()["generation_tokens"] - before < 120


def test_nothing_is_left_of_a_server_that_was_killed(tiny: Variant, program: Path, tmp_path: Path) -> None:
    server = OpenVinoServer(tiny, program=program, log=tmp_path / "server.log")
    server.start()
    tree = list_tree(server.pid)
    live_processes.kill(tree[1:])
    with pytest.raises(ServerFailed, match="does not answer any more"):
        for _ in range(100):
            server.metrics()
    server.stop()
    assert tree and all(live_processes.has_ended(process) for process in tree)
    assert not server.key_file.exists()


def test_a_damaged_file_is_one_sentence(tiny: Variant, program: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(str(tiny.gguf)).read_bytes()[:2000])
    server = OpenVinoServer(tiny.model_copy(update={"gguf": str(broken)}), program=program, log=tmp_path / "server.log")
    with pytest.raises(ServerFailed, match="damaged or cut short"):
        server.start()


def test_many_samples_come_in_parts_and_in_order(server: OpenVinoServer) -> None:
    answers = server.token_answers([[5, 6, 7], [8, 9]], 2, samples=20)
    assert len(answers) == 40 and all(1 <= len(answer) <= 2 for answer in answers)
