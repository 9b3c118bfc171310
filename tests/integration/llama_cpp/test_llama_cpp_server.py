"""llama.cpp's own server, as it was built here, serving a tiny GGUF file: routes, counters, probabilities, and its
end."""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from backend import served_keys
from backend.domain.errors import ServerFailed
from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.evaluation.evidence.findings import findings
from backend.processes import list_tree
from backend.serving.llama_cpp import STRIDE, LlamaCppServer
from tests import live_processes


@pytest.fixture
def server(tiny: Variant, program: Path, tmp_path: Path) -> Iterator[LlamaCppServer]:
    with LlamaCppServer(tiny, program=program, log=tmp_path / "server.log") as running:
        yield running


def test_it_answers_counts_and_says_what_it_serves(server: LlamaCppServer, tiny: Variant) -> None:
    before = server.metrics()
    reply = server.answer("/v1/completions", {"prompt": "def add", "max_tokens": 5, "temperature": 0})
    assert reply["usage"]["completion_tokens"] <= 5 and reply["model"] == server.served_name
    assert server.metrics()["generation_tokens"] > before["generation_tokens"]
    assert server.startup is not None and server.startup.ready_s > 0
    proven = {finding.what: finding.proven for finding in findings(tiny, {}, [server.evidence()], [])}
    assert all(proven[what] for what in ("quantization", "context", "streams", "threads", "kv_cache"))


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_it_speculates_with_the_answers_of_before(
    tiny: Variant, server: LlamaCppServer, program: Path, tmp_path: Path, method: Literal["ngram", "draft"]
) -> None:
    """The draft is the model itself, so that all it proposes is accepted."""
    prompts = [server.prompt_tokens("one two three four " * 4, chat=False)]
    plain = server.token_answers(prompts, 24)
    draft = tiny.gguf if method == "draft" else None
    # Single tokens are looked up: longer n-grams repeat too seldom in what a random model says.
    speculation = Speculation(method=method, tokens=4, prompt_lookup=(1, 1), draft_gguf=draft)
    variant = tiny.model_copy(update={"speculation": speculation})
    with LlamaCppServer(variant, program=program, log=tmp_path / "speculating.log") as speculating:
        assert speculating.token_answers(prompts, 24) == plain
        counted = speculating.metrics()
        evidence = speculating.evidence()
    assert evidence.llama_cpp is not None
    assert evidence.llama_cpp.speculation == llama_cpp_speculation.KINDS[method]
    assert counted["drafts"] and counted["accepted_tokens"] == sum(counted[f"accepted_at_{at}"] for at in range(4))
    assert method == "ngram" or counted["accepted_tokens"] == counted["drafted_tokens"]


def test_nobody_is_answered_without_its_key(server: LlamaCppServer) -> None:
    assert server.key_file.read_text() == server.key == served_keys.find(server._port)
    for path in ("/metrics", "/v1/models", "/v1/completions", "/props"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{server._port}{path}", timeout=60)
        assert refused.value.code == 401
        refused.value.close()


def test_probabilities_of_a_prompt_are_those_of_its_answers(server: LlamaCppServer) -> None:
    tokens = server.prompt_tokens("def add(x): return x + 1", chat=False)
    positions = server.prompt_logprobs(tokens, 20)
    assert len(positions) == len(tokens) and not positions[0]
    numbers = [number for number, position in enumerate(positions) if position]
    assert numbers == list(range(STRIDE, len(tokens), STRIDE))
    for position in (positions[number] for number in numbers):
        assert len(position) == 20 and sum(map(math.exp, position.values())) <= 1.001
    greedy = server.token_answers([tokens[:STRIDE]], 1)[0]
    assert max(positions[STRIDE], key=lambda token: positions[STRIDE][token]) == str(greedy[0])


def test_answers_as_token_ids(server: LlamaCppServer) -> None:
    prompts = [server.prompt_tokens(text, chat=False) for text in ("one", "two")]
    greedy = server.token_answers(prompts, 4)
    assert greedy == [server.token_answers([prompt], 4)[0] for prompt in prompts]
    assert len(server.token_answers(prompts[:1], 2, samples=3)) == 3


def test_nothing_is_left_of_it(tiny: Variant, program: Path, tmp_path: Path) -> None:
    """Started and stopped again and again, and its process killed in between."""
    for _ in range(5):
        server = LlamaCppServer(tiny, program=program, log=tmp_path / "server.log")
        server.start()
        tree = list_tree(server.pid)
        server.stop()
        assert tree and all(live_processes.has_ended(process) for process in tree)
        assert not server.key_file.exists()
    server.start()
    live_processes.kill(live_processes.children(server.pid))
    with pytest.raises(ServerFailed, match="does not answer any more"):
        for _ in range(100):
            server.metrics()
    server.stop()


def test_a_damaged_file_is_one_sentence(tiny: Variant, program: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(str(tiny.gguf)).read_bytes()[:2000])
    server = LlamaCppServer(tiny.model_copy(update={"gguf": str(broken)}), program=program, log=tmp_path / "server.log")
    with pytest.raises(ServerFailed, match="damaged or cut short"):
        server.start()
