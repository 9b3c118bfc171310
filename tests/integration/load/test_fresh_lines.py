"""A server that keeps prompts is asked each line once: its times are those of fresh prompts, and it says so itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import InvalidWorkload
from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.soundness import is_replayed, level_validity
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.evaluations import bench, evaluations
from backend.service.jobs import supervisors
from tests.fakes.running import ask, running
from tests.homes import until_ended
from tests.integration.load.prompt_lines import lines

TTFT_MS = 80
KEEPING = ("exact_server.py", "--ttft-ms", TTFT_MS, "--rate", 2000, "--prefix-cache", 16, "--metrics")


def measured(home: Workspace, urls: list[str], **chosen: Any) -> Evaluation:
    options = evaluations.read_options(
        **({"concurrency": (1, 4), "requests": 4, "repeats": 2, "max_tokens": 2} | chosen)
    )
    job = evaluations.submit(home, evaluations.prepare(home, urls, options))
    supervisors.ensure_running(home)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.SUCCEEDED, ended.error
    return evaluations.show(home, str(ended.result["evaluation"])).document


def test_warm_up_blocks_and_levels_replay_nothing_into_the_cache(home: Workspace, tmp_path: Path) -> None:
    with running(*KEEPING) as first, running(*KEEPING, "--details") as second:
        document = measured(home, [first, second], workload=lines(tmp_path, 80))
        for url in (first, second):
            counts = Counter(answer["prompt"] for answer in ask(f"{url}/sent"))
            apart = {f"{number:04d}" * 100 for number in range(36)}
            assert {prompt for prompt, times in counts.items() if times > 1} <= apart, (
                "only lines that nothing measures"
            )
    for result in document.variants:
        for level in result.levels:
            assert level.prefix_cache_hit_rate == level.prefix_cache_expected == 0 and not is_replayed(level)
            assert level.ttft_ms is not None and level.ttft_ms.p50 > 0.9 * TTFT_MS


def test_two_evaluations_from_two_processes_at_once_both_succeed(home: Workspace, tmp_path: Path) -> None:
    """One of them had a traceback."""
    words = [
        "--concurrency",
        "1",
        "--requests",
        "2",
        "--repeats",
        "1",
        "--max-tokens",
        "2",
        "--workload",
        lines(tmp_path, 40),
    ]
    environment = os.environ | {"WHETSTONE_HOME": str(home.settings.home)}
    with running(*KEEPING) as url:
        command = [sys.executable, "-m", "backend.cli.main", "evaluate", url, *words, "--no-quality"]
        both = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in "ab"
        ]
        messages = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], messages
    assert len(evaluations.listing(home)) == 2


def test_a_workload_that_is_too_short_is_refused_before_anything_starts(home: Workspace, tmp_path: Path) -> None:
    short = lines(tmp_path, 20)
    with pytest.raises(InvalidWorkload, match=r"asks 62 lines, and the workload 20 has 20\. .* per-run"):
        measured(home, ["http://127.0.0.1:1"], workload=short)
    with pytest.raises(InvalidWorkload, match="asks 12 lines"):
        bench.run_bench(
            home,
            "http://127.0.0.1:1",
            None,
            evaluations.read_options(
                concurrency=(4,), requests=4, repeats=1, quality=False, workload=lines(tmp_path, 11)
            ),
        )


def test_each_run_may_keep_prefixes_of_its_own_and_then_lines_come_round(home: Workspace, tmp_path: Path) -> None:
    with running(*KEEPING, "--details") as url:
        document = measured(home, [url], workload=lines(tmp_path, 13), prefix_cache="per-run")
        salts = {answer["salt"] for answer in ask(f"{url}/sent")}
    assert len(salts) == 2 + 2 + 4 and "" not in salts, "two of warming, two of the greedy answers, four runs"
    assert [level.prefix_cache_hit_rate for level in document.variants[0].levels] == [0, 0]


@pytest.mark.alone
def test_a_cache_that_answers_although_switched_off_makes_a_level_invalid(home: Workspace, tmp_path: Path) -> None:
    with running(*KEEPING) as url:
        document = measured(home, [url, url], workload=lines(tmp_path, 5), prefix_cache="off")
    levels = [level for result in document.variants for level in result.levels]
    assert {level_validity(level) for level in levels} == {"no"} and all(
        (level.prefix_cache_hit_rate or 0) > 0.5 for level in levels
    )
    causes = {row.why and row.why.cause for row in document.comparison}
    assert "replayed_prompts" in causes and causes <= {"replayed_prompts", "client_limited"}  # answers of milliseconds


def test_a_bench_tells_the_hit_rate_of_its_levels(home: Workspace, tmp_path: Path) -> None:
    with running(*KEEPING) as url:
        options = evaluations.read_options(
            concurrency=(1, 2), requests=3, repeats=2, quality=False, workload=lines(tmp_path, 40)
        )
        levels = bench.run_bench(home, url, None, options).levels
        assert max(Counter(answer["prompt"] for answer in ask(f"{url}/sent")).values()) == 1
    assert [level["prefix_cache_hit_rate"] for level in levels] == [0, 0]


def test_an_evaluation_of_which_every_request_failed_has_failed_and_says_why(home: Workspace, tmp_path: Path) -> None:
    """`always_400` refuses whatever it is asked."""
    with running("broken_server.py") as url:
        options = evaluations.read_options(
            concurrency=(1,), requests=2, repeats=1, quality=False, workload=lines(tmp_path, 8)
        )
        job = evaluations.submit(home, evaluations.prepare(home, [f"{url}#always_400"], options))
        supervisors.ensure_running(home)
        ended = until_ended(home, job.id)
    assert ended.state is JobState.FAILED
    assert str(ended.error).startswith("Every one of 2 requests failed (2 http_400; the first: ")
