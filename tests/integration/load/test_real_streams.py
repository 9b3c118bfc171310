"""Streams as servers really send them: an answer ends where it has ended, and a hostile one fills no memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.evaluation.document import Level
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.evaluate.load import run_level, runner
from tests.fakes.running import ask, running, write_prompts
from tests.fakes.streaming_server import OPEN_S, WORDS

TEXT = "".join(WORDS)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running("streaming_server.py") as url:
        yield url


def run(url: str, folder: Path, **changed: Any) -> tuple[list[RequestRecord], Audit, Level]:
    """One stream, asked over chat."""
    fields = {"model": "fake", "load": Load("closed", 1), "requests": 3, "warmup_requests": 0, "timeout_s": 30.0}
    prompts = changed.pop("prompts", None) or write_prompts(folder)
    plan = LoadPlan(**({"endpoint": "chat", "url": url, "prompts": prompts} | fields | changed))
    records, audit = run_level(plan, folder / "level")
    return records, audit, summarise_level(plan.load, [records], [audit], pricing=None, acceptance=None)


@pytest.mark.parametrize("mode", ["openend", "unmarked", "raw"])
def test_an_answer_that_has_ended_is_over_although_the_response_is_not(server: str, tmp_path: Path, mode: str):
    records, _, level = run(f"{server}/{mode}", tmp_path)
    assert level.errors == {}
    assert {record.text for record in records} == {TEXT}
    assert {record.output_tokens for record in records} == {len(WORDS)}
    assert all(record.last_content is not None and record.end - record.last_content < OPEN_S / 2 for record in records)


def test_the_token_limit_is_sent_under_the_name_that_the_endpoint_accepts(server: str, tmp_path: Path):
    url = f"{server}/newparam"
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        _, audit, level = run(url, tmp_path / str(number), max_tokens=4)
        assert (audit.length_field, audit.usage, level.errors) == ("max_completion_tokens", "continuous", {})
    reply = ask(f"{url}/seen")
    assert ["max_tokens" in body for body in reply] == [True] + [False] * 6
    assert all(body["max_completion_tokens"] == 4 for body in reply[1:])
    runner._accepted_fields.clear()


def test_the_reasoning_of_an_answer_is_not_sent_back_as_what_the_assistant_said(server: str, tmp_path: Path):
    prompts = write_prompts(tmp_path, {"turns": ["one", "two"], "system": None})
    records, _, _ = run(f"{server}/both", tmp_path, prompts=prompts, requests=2)
    assert {record.text for record in records} == {TEXT}
    conversation = ask(f"{server}/both/seen")[-1]["messages"]
    assert [message["role"] for message in conversation] == ["user", "assistant", "user"]
    assert conversation[1]["content"] == "".join(WORDS[len(WORDS) // 2 :])


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("endless", "too_large"), ("endlessline", "too_large"), ("endlesshead", "malformed"), ("deep", "malformed")],
)
def test_a_hostile_answer_fails_and_fills_no_memory(server: str, tmp_path: Path, mode: str, kind: str):
    records, audit, level = run(f"{server}/{mode}", tmp_path, requests=2)
    assert level.errors == {kind: 2}
    assert all(record.error for record in records)
    assert audit.peak_rss_bytes is not None and audit.peak_rss_bytes < 400 * 2**20
