"""Every workload file as people have it, through `whetstone bench`: what the server gets is what stands in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.workload.generators import LONGER_WORKLOAD, WORKLOAD_KINDS
from tests.cases import workloads as cases
from tests.fakes.running import ask, running
from tests.integration.cli.calling import one_sentence, whetstone

pytestmark = pytest.mark.campaign

TRACES = {
    "azure.csv": "12 requests over 1.11 s (its times are dates)",
    "burstgpt.csv": "12 requests over 11 s (timestamps read as seconds)",
    "mooncake.jsonl": "12 requests over 1.1 s (timestamps read as milliseconds)",
    "mooncake-small-blocks.jsonl": "12 requests over 1.1 s (timestamps read as milliseconds)",
    "mooncake-texts.jsonl": "12 requests over 1.1 s (timestamps read as milliseconds)",
    "moments.jsonl": "12 requests over 0.55 s (its times are dates)",
    "moments-messages.jsonl": "12 requests over 0.55 s (its times are dates)",
    "moments.csv": "12 requests over 0.55 s (its times are dates)",
}
LENGTHS = {"azure.csv": 300, "burstgpt.csv": 400, "mooncake.jsonl": 655, "mooncake-small-blocks.jsonl": 655}
LEFT_OUT = {
    "sharegpt-empty.json": "1 of 41 entries cannot be used and is left out (entry 4: its conversation is empty).",
    "sharegpt-answer-alone.json": "1 of 41 entries cannot be used and is left out (entry 4: no user speaks in its "
    "conversation).",
}
WHOLE = [name for name in cases.FILES if name not in {*TRACES, "unclear-times.jsonl"}]


@pytest.fixture
def server() -> Iterator[str]:
    with running("exact_server.py", "--rate", 2000, "--ttft-ms", 1) as url:
        yield url


def bench(home: Path, url: str, *options: object) -> tuple[dict[str, Any], str]:
    """The level and standard error of a run with every line asked once, in order."""
    done = whetstone(home, "bench", url, *options, "--max-tokens", 4, "--json")
    assert done.returncode == 0, done.stderr
    (level,) = json.loads(done.stdout)
    assert level["invocation_errors"] == 0
    return level, done.stderr


def prompts(url: str) -> list[str]:
    return [answer["prompt"] for answer in ask(f"{url}/sent")]


def expected(name: str) -> list[str]:
    """The prompts of a file, made as the file was made."""
    questions = [cases.question(n) for n in range(cases.PROMPTS)]
    if name.startswith("spreadsheet-tail"):
        return [f"Question {n}, line one\nline two" for n in range(cases.PROMPTS)]
    if name == "separators.jsonl":
        return [json.loads(line)["prompt"] for line in cases.content(name).decode().split("\n") if line]
    if name == "control-characters.csv":
        return [line for line in cases.content(name).decode().split("\r\n")[1:] if line]
    return [f"Be short.\n{text}" for text in questions] if name.startswith("batch") else questions


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_sent_is_what_stands_in_the_file(server: str, tmp_path: Path, name: str) -> None:
    file = cases.write(tmp_path, name)
    one = ["--concurrency", 1, "--requests", cases.PROMPTS, "--warmup", 0, "--prefix-cache", "off"]
    level, message = bench(tmp_path / "home", server, "--workload", file, *one)
    assert level["requests"] == cases.PROMPTS
    first, *others = expected(name)
    assert prompts(server) == [*others, first], "the first line is set apart for warming, and comes round at the end"
    assert LEFT_OUT.get(name, "") in message and ("left out" in message) == (name in LEFT_OUT)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_replayed_at_its_times_and_says_how_long(server: str, tmp_path: Path, name: str) -> None:
    level, message = bench(tmp_path / "home", server, "--trace", cases.write(tmp_path, name))
    assert TRACES[name] in message
    sent = prompts(server)
    assert level["requests"] == len(sent) == cases.TIMED
    if name in LENGTHS:
        assert "The workload gives lengths and no text" in message
        assert all(abs(len(text) // 4 - LENGTHS[name]) < 40 for text in sent)
    else:
        assert sorted(sent) == sorted(cases.question(n) for n in range(cases.TIMED))


def test_blocks_that_a_trace_names_are_shared_and_no_others(server: str, tmp_path: Path) -> None:
    bench(tmp_path / "home", server, "--trace", cases.write(tmp_path, "mooncake.jsonl"))
    sent = prompts(server)
    assert len({text[:1900] for text in sent}) == 1 and len({text[:2300] for text in sent}) == 3


def test_a_unit_that_is_not_known_is_asked_for_and_taken(server: str, tmp_path: Path) -> None:
    file = cases.write(tmp_path, "unclear-times.jsonl")
    refused = one_sentence(whetstone(tmp_path / "home", "bench", server, "--trace", file))
    assert "in milliseconds (over 2.75 s): say which with --time-unit, as s or ms" in refused
    _, message = bench(tmp_path / "home", server, "--trace", file, "--time-unit", "ms")
    assert "12 requests over 2.75 s (timestamps read as milliseconds)" in message


def test_a_load_of_any_size_runs_without_a_workload(server: str, tmp_path: Path) -> None:
    level, message = bench(tmp_path / "home", server, "--concurrency", 256, "--requests", 1024)
    assert level["requests"] == 1024 and f"{LONGER_WORKLOAD} is used" in message
    sent = prompts(server)
    assert len(set(sent)) == len(sent) > WORKLOAD_KINDS[LONGER_WORKLOAD].prompts
