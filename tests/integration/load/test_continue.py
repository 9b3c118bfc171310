"""An evaluation is continued: its old blocks as they were, new ones on lines that were never asked, and a level that
pays for the look."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest
from scipy import stats

from backend.cli.verbs.evaluate import summary_text
from backend.domain import figures
from backend.domain.errors import NotContinued, NotNow
from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.comparison import log_ratios
from backend.domain.evaluation.soundness import measured_blocks
from backend.domain.jobs.jobs import EvaluateSpec, JobState
from backend.service import Workspace
from backend.service.evaluations import continuation, evaluations
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs import jobs, supervisors
from tests.fakes.running import ask, running
from tests.homes import until_ended
from tests.integration.load.prompt_lines import lines

NOISY = ("exact_server.py", "--ttft-ms", 5, "--rate", 2000, "--prefix-cache", 16, "--metrics", "--jitter", 0.2)


def ended(home: Workspace, spec: EvaluateSpec) -> EvaluationView:
    send = continuation.submit if spec.continues else evaluations.submit
    job = send(home, spec)
    supervisors.ensure_running(home)
    done = until_ended(home, job.id)
    assert done.state is JobState.SUCCEEDED, done.error
    return evaluations.show(home, str(done.result["evaluation"]))


@pytest.mark.campaign
def test_more_blocks_follow_the_old_ones_on_fresh_lines_and_the_look_is_paid_for(
    home: Workspace, tmp_path: Path
) -> None:
    options = evaluations.read_options(
        concurrency=(1, 2),
        requests=3,
        repeats=5,
        warmup_requests=1,
        max_tokens=3,
        quality=False,
        workload=lines(tmp_path, 110),
    )
    with running(*NOISY) as first, running(*NOISY) as second:
        old = ended(home, evaluations.prepare(home, [first, second], options))
        before = old.document.model_dump_json()
        new = ended(home, continuation.prepare(home, old.id, 2))
        for url in (first, second):
            counts = Counter(answer["prompt"] for answer in ask(f"{url}/sent"))
            warming = {f"{number:04d}" * 100 for number in range(2)}
            assert {prompt for prompt, times in counts.items() if times > 1} <= warming
        with pytest.raises(NotContinued, match=f"{new.id} has done so; continue that one"):
            continuation.prepare(home, old.id, 2)
        with pytest.raises(NotNow, match="continue its own evaluation"):
            jobs.clone(home, new.job_id)
        with pytest.raises(NotContinued, match=r"its workload has 110 lines, and .* was asked the others"):
            continuation.prepare(home, new.id, 40)
    assert evaluations.show(home, old.id).document.model_dump_json() == before, "the old one is as it was"
    document = new.document
    assert document.continues == old.id and document.sessions == (5, 2) and document.options.repeats == 7
    assert [(check.blocks, check.alpha, check.continuation) for check in document.looks] == [
        (5, 0.05, 0),
        (7, 0.025, 1),
    ]
    for was, now in zip(old.document.variants, document.variants, strict=True):
        for earlier, later in zip(was.levels, now.levels, strict=True):
            slices = 3 if later.concurrency == 1 else 1
            # a block in which the load generator was late, as beside other tests, is left out
            assert (measured_blocks(earlier), measured_blocks(later)) == (5, 7)
            assert len(earlier.blocks) == earlier.repeats * slices and len(later.blocks) == later.repeats * slices
            assert later.blocks[: len(earlier.blocks)] == earlier.blocks
            assert later.invocations == later.repeats * 3 and later.prefix_cache_hit_rate == 0
    rows = pyarrow.parquet.read_table(
        Path(new.path) / "records.parquet", columns=["variant", "load", "block"]
    ).to_pylist()
    assert Counter(row["block"] for row in rows) == dict.fromkeys(range(7), 2 * (3 + 1 + 3 + 2))
    assert (Path(new.path) / "report.html").is_file()
    assert jobs.show(home, new.job_id).title.endswith(": 2 more blocks")


def test_a_continuation_that_fails_leaves_the_evaluation_to_be_continued_again(home: Workspace, tmp_path: Path) -> None:
    options = evaluations.read_options(
        concurrency=(1,), requests=3, repeats=2, max_tokens=3, quality=False, workload=lines(tmp_path, 90)
    )
    with running(*NOISY) as url:
        old = ended(home, evaluations.prepare(home, [url, url], options))
        spec = continuation.prepare(home, old.id, 1)
    job = continuation.submit(home, spec)
    with pytest.raises(NotContinued, match=f"job {job.id} does so already"):
        continuation.prepare(home, old.id, 1)
    supervisors.ensure_running(home)
    failed = until_ended(home, job.id)
    assert failed.state is JobState.FAILED and evaluations.count(home) == 1, "the server is gone"
    assert continuation.prepare(home, old.id, 1) == spec


@pytest.mark.alone
def test_blocks_are_added_until_it_is_decided_and_no_more(home: Workspace, tmp_path: Path) -> None:
    options = evaluations.read_options(
        concurrency=(2,),
        requests=4,
        max_tokens=6,
        warmup_requests=1,
        quality=False,
        prefix_cache="off",
        workload=lines(tmp_path, 8),
        until_decided=True,
        max_blocks=12,
    )
    fast, slow = ("exact_server.py", "--ttft-ms", 4, "--rate", 800), ("exact_server.py", "--ttft-ms", 12, "--rate", 250)
    with running(*slow) as first, running(*fast) as second:
        view = ended(home, evaluations.prepare(home, [first, second], options))
    document = view.document
    blocks = document.options.repeats
    places, levels = stopping_rule.blocks_of_tests(12), stopping_rule.significance_levels(12)
    assert blocks in places and document.sessions == (blocks,)
    assert [check.blocks for check in document.looks] == list(places[: places.index(blocks) + 1])
    assert [check.alpha for check in document.looks] == list(levels[: len(document.looks)])
    assert (
        all(check.most == 12 for check in document.looks)
        and [bool(check.undecided) for check in document.looks][-1] is False
    )
    assert all(level.repeats == blocks for result in document.variants for level in result.levels)
    (row,) = [row for row in document.comparison if row.metric == "output_tokens_per_s"]
    assert row.outcome == "better" and row.ci95 is not None
    logs = log_ratios(document.variants, row)
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval(1 - levels[len(document.looks) - 1] / 4)
    assert row.ci95[1] <= math.exp(interval.high) * (1 + 1e-9) and row.ci95[0] >= math.exp(interval.low) * (1 - 1e-9)
    text = summary_text(document)
    level = figures.level(levels[len(document.looks) - 1])
    assert f"of at most 12 blocks, as planned; all are conclusive. The last test used {level}" in text
    assert continuation.prepare(home, view.id, 2).options.until_decided is False
