"""`whetstone bench` as a user meets it: every mode, what is refused before it starts, and a server that dies on the
way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.running import ask, running
from tests.integration.cli.calling import one_sentence, process, whetstone


@pytest.fixture(scope="module")
def exact() -> Iterator[str]:
    with running("exact_server.py", "--rate", 400, "--ttft-ms", 10) as url:
        yield url


def levels(home: Path, *arguments: object) -> list[dict[str, Any]]:
    done = whetstone(home, "bench", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    parsed: list[dict[str, Any]] = json.loads(done.stdout)
    return parsed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "2", "--rate", "3"], "--concurrency is for a closed loop"),
        (["--rate", "fast"], "--rate is wrong"),
        (["--rate", "0"], "--rate is wrong"),
        (["--rate", "nan"], "--rate is wrong"),
        (["--rate", "2,2"], "--rate is wrong"),
        (["--poisson"], "--poisson needs --rate or --ramp"),
        (["--ramp", "5"], "--ramp is wrong"),
        (["--ramp", "1:5"], "--ramp needs --seconds"),
        (["--ramp", "1:5", "--rate", "2"], "cannot be combined"),
        (["--sweep", "fast"], "--sweep is wrong: `fast` is not an objective"),
        (["--sweep", "ttft_p95<=1s", "--no-stream"], "--sweep is wrong: ttft_p95<=1s needs streamed answers"),
        (["--sweep", "ttft_p95<=1s", "--ramp", "1:2", "--seconds", "1"], "--sweep searches"),
        (["--sweep-to", "4"], "--sweep-to needs --sweep"),
        (["--trace", "nowhere.jsonl"], "There is no workload `nowhere.jsonl`"),
        (["--workload", "nowhere"], "one of assistant, starter-code, question-answering"),
        (["--column", "prompt"], "--column is wrong"),
        (["--tokenizer", "nosuch"], "nosuch"),
        (["--seconds", "inf"], "--seconds is wrong"),
        (["--connections", "0"], "--connections is wrong"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_before_anything_is_sent(
    tmp_path: Path, options: list[str], says: str
) -> None:
    assert says in one_sentence(whetstone(tmp_path, "bench", "http://127.0.0.1:9", *options))


def test_rates_are_levels_of_the_contract_with_their_rate(exact: str, tmp_path: Path) -> None:
    options = ["--rate", "20,40", "--poisson", "--requests", 10, "--warmup-seconds", 0.2, "--max-tokens", 4]
    measured_levels = levels(tmp_path, exact, *options)
    assert [(level["load"], level["requests"], level["errors"]) for level in measured_levels] == [
        ({"mode": "rate", "value": rate}, 10, {}) for rate in (20, 40)
    ]
    assert all(level["concurrency"] >= 1 and level["ttft_ms"]["p50"] >= 5 for level in measured_levels)


def test_a_ramp_and_chat_sessions_of_a_built_in_workload(exact: str, tmp_path: Path) -> None:
    (level,) = levels(
        tmp_path, exact, "--ramp", "0:40", "--seconds", 0.5, "--workload", "chat", "--chat", "--max-tokens", 4
    )
    assert (level["load"], level["steady_output_tokens_per_s"]) == ({"mode": "ramp", "value": 40}, None)
    assert level["requests"] > 10  # ten conversations, and their further turns


def test_a_table_with_named_columns_is_a_workload(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("id,wording,length\n1,What is it?,3\n2,Why is it?,4\n")
    with running("broken_server.py") as url:
        columns = ["--column", "prompt=wording", "--column", "max_tokens=length"]
        levels(
            tmp_path / "home",
            url,
            "--workload",
            tmp_path / "mine.csv",
            *columns,
            "--concurrency",
            1,
            "--requests",
            2,
            "--prefix-cache",
            "off",
        )
        bodies = [body for body in ask(f"{url}/seen") if body]
    assert {(body["prompt"], body["max_tokens"]) for body in bodies} == {("What is it?", 3), ("Why is it?", 4)}


def test_a_trace_is_replayed_and_a_table_says_so(exact: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"prompt": "p", "timestamp": n / 10}) + "\n" for n in range(5)))
    done = process(tmp_path / "home", "bench", exact, "--trace", trace, "--max-tokens", 2, "--no-stream")
    assert done.returncode == 0, done.stderr
    assert "under way" in done.stdout.splitlines()[0]
    assert "the trace" in done.stderr


def test_levels_done_before_the_server_died_are_kept_and_shown(tmp_path: Path) -> None:
    arguments = ["--model", "ok", "--concurrency", "1,2,4,8", "--max-tokens", 8]
    with running("broken_server.py", "--die-after", 28) as url:
        done = process(tmp_path, "bench", url, *arguments, "--json")
    assert done.returncode == 1
    parsed = json.loads(done.stdout)
    assert [level["concurrency"] for level in parsed] == [1, 2, 4]
    assert [level["invocation_errors"] for level in parsed[:2]] == [0, 0]
    assert 0 < parsed[2]["invocation_errors"] == sum(parsed[2]["errors"].values())
    assert "cannot be reached" in done.stderr and "3 level(s) were finished before that" in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_are_named_beside_the_table(tmp_path: Path) -> None:
    with running("broken_server.py") as url:
        done = whetstone(tmp_path, "bench", url, "--model", "html", "--concurrency", 1, "--requests", 2)
        uncounted = whetstone(tmp_path, "bench", url, "--model", "no_usage", "--concurrency", 1, "--requests", 2)
    assert (done.returncode, uncounted.returncode) == (1, 0), "where every request failed, the work did"
    assert "2 of 2 requests failed: 2 malformed" in done.stdout
    assert done.stderr.splitlines()[-1].startswith(
        "whetstone: Every one of 2 requests failed (2 malformed): ask the endpoint"
    )
    assert "2 answers came without a token count" in uncounted.stdout
