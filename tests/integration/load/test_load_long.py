"""Long prompts, long answers and the sessions made of both: nothing is lost, and what reads along goes when the load
does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.domain.errors import WorkError
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan, RequestRecord
from backend.evaluate.load import run_level
from benchmarks.load_scale import LONG_PROMPT
from tests import live_processes
from tests.fakes.running import ask, running, write_prompts
from tests.homes import eventually, once

SENTENCE = "the quick brown fox jumps over it all "
READER = "backend.evaluate.load.answer_reader"


def plan(url: str, folder: Path, *rows: dict[str, Any], **changed: Any) -> LoadPlan:
    fields = {"model": "ok", "endpoint": "chat", "load": Load("closed", 2), "requests": 4, "warmup_requests": 0}
    return LoadPlan(**({"url": url, "prompts": write_prompts(folder, *rows)} | fields | changed))


def words(record: RequestRecord) -> list[str]:
    return record.text.split()


def test_a_prompt_of_50k_tokens_arrives_whole(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        records, _ = run_level(plan(url, tmp_path, {"prompt": LONG_PROMPT}), tmp_path / "level")
        reply = ask(f"{url}/seen")
    assert [record.text for record in records] == [SENTENCE] * 4
    assert [body["messages"] for body in reply] == [[{"role": "user", "content": LONG_PROMPT}]] * 4


def test_of_an_answer_of_16000_tokens_each_one_is_kept(tmp_path: Path) -> None:
    with running("exact_server.py", "--rate", 40_000, "--tokens-per-chunk", 4) as url:
        records, _ = run_level(plan(url, tmp_path, requests=2, max_tokens=16_000), tmp_path / "level")
        truth = {row["number"]: row for row in ask(f"{url}/sent")}
    for record in records:
        number, *message = words(record)
        assert message == [f"w{n}" for n in range(16_000)]
        assert record.chunk_tokens == tuple(range(4, 16_001, 4))
        sends = truth[int(number[1:])]["sends"]
        assert len(sends) == 4000
        assert all(observed > left for observed, left in zip(record.chunk_times, sends, strict=True))


def test_a_session_of_long_turns_carries_all_of_it_along(tmp_path: Path) -> None:
    turns = [LONG_PROMPT, "and then", "and then"]
    with running("broken_server.py") as url:
        records, _ = run_level(
            plan(url, tmp_path, {"turns": turns}, load=Load("closed", 1), requests=3), tmp_path / "level"
        )
        reply = ask(f"{url}/seen")
    assert [record.turn for record in records] == [0, 1, 2]
    assert [part["content"] for part in reply[2]["messages"]] == [
        LONG_PROMPT,
        SENTENCE,
        "and then",
        SENTENCE,
        "and then",
    ]


def readers() -> list[psutil.Process]:
    return [child for child in live_processes.children() if READER in live_processes.command(child)]


def of_sessions(url: str, folder: Path) -> LoadPlan:
    return plan(url, folder, {"turns": ["a"] * 1000}, requests=None, seconds=60, max_tokens=4)


def test_a_reader_that_is_killed_ends_the_level_in_one_sentence(tmp_path: Path) -> None:
    def kill() -> None:
        live_processes.kill(readers())

    with (
        running("exact_server.py", "--rate", 400) as url,
        pytest.raises(WorkError, match="reads the answers of sessions ended"),
        once(lambda: bool(readers()), kill),
    ):
        run_level(of_sessions(url, tmp_path), tmp_path / "level")


def test_a_reader_does_not_outlive_the_load(tmp_path: Path) -> None:
    results: list[psutil.Process] = []

    def kill() -> None:
        (process,) = readers()
        results.append(process)
        load = process.parent()
        assert load is not None
        load.kill()  # it alone: what a signal to the whole group would also end must end by itself

    with (
        running("exact_server.py", "--rate", 400) as url,
        pytest.raises(WorkError, match="killed by signal 9"),
        once(lambda: bool(readers()), kill),
    ):
        run_level(of_sessions(url, tmp_path), tmp_path / "level")
    eventually("the reader has ended", lambda: live_processes.has_ended(results[0]))
