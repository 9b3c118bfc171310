"""A server that is not ours is scored on tasks only where it reads token ids as a tokenizer that is here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backend.evaluate.quality.token_match import token_mismatch
from tests.fakes.running import running
from tests.tiny import tiny_llama


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("plain_server.py", (), "not JSON"),
        ("plain_server.py", ("--refuse", "logprobs are not supported"), "HTTP 400.*logprobs are not supported"),
        ("exact_server.py", (), "does not echo the log-probabilities"),
    ],
)
def test_what_stands_in_the_way_is_one_sentence(
    tmp_path: Path, script: str, options: tuple[str, ...], message: str
) -> None:
    model = tiny_llama(tmp_path / "model")
    with running(script, *options) as url:
        why = token_mismatch(url, "exact", model)
    assert why is not None and re.search(message, why) and "\n" not in why


def test_nothing_there_is_one_sentence(tmp_path: Path) -> None:
    why = token_mismatch("http://127.0.0.1:9", "any", tiny_llama(tmp_path / "model"))
    assert why is not None and "cannot be reached (connection refused)" in why
