"""A server that is not ours is scored on tasks only where it reads token ids as a tokenizer that is here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backend.evaluate.quality.tokens import unfit
from backend.serving.vllm import VllmServer
from tests.fakes.running import running
from tests.tiny import tiny_llama


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_vllm_reads_the_tokens_of_its_model_and_no_others(vllm_server: VllmServer, starter_target: Path, tmp_path: Path) -> None:
    assert unfit(vllm_server.url, vllm_server.served_name, starter_target) is None
    other = tiny_llama(tmp_path / "other")
    why = unfit(vllm_server.url, vllm_server.served_name, other)
    assert why is not None and ("as another text" in why or "HTTP 400" in why)
    missing = unfit(vllm_server.url, "no-such-model", starter_target)
    assert missing is not None and "HTTP 404" in missing


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        ("plain_server.py", (), "not in JSON"),
        ("plain_server.py", ("--refuse", "logprobs are not supported"), "HTTP 400.*logprobs are not supported"),
        ("exact_server.py", (), "does not echo the log-probabilities"),
    ],
)
def test_what_stands_in_the_way_is_one_sentence(tmp_path: Path, script: str, options: tuple[str, ...], said: str) -> None:
    model = tiny_llama(tmp_path / "model")
    with running(script, *options) as url:
        why = unfit(url, "exact", model)
    assert why is not None and re.search(said, why) and "\n" not in why


def test_nothing_there_is_one_sentence(tmp_path: Path) -> None:
    why = unfit("http://127.0.0.1:9", "any", tiny_llama(tmp_path / "model"))
    assert why is not None and "cannot be reached (connection refused)" in why
