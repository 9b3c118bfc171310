"""Evaluations of endpoints in every mode of load, as jobs: verdicts a rate, sweeps, and a server that dies on the
way."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow.parquet
import pytest

from app.results.figure_tables import server_rows
from backend.cli.verbs.evaluate import summary_text
from backend.domain.errors import GateFailed, InvalidWorkload
from backend.domain.evaluation.soundness import measured_blocks
from backend.domain.load.load import Load
from backend.domain.load.prompt_lines import OPEN_STREAMS
from backend.service import Workspace
from backend.service.evaluations import evaluations
from tests.fakes.running import running
from tests.integration.load.evaluating import evaluated

AFTER_WARMING = sum(OPEN_STREAMS)
"""Requests that a server of a search has had before the first variant's turn."""


@pytest.mark.campaign
def test_rates_are_compared_rate_by_rate_on_a_kept_copy_of_the_workload(home: Workspace, tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps([{"conversations": [{"from": "human", "value": f"question {n}"}]} for n in range(80)]))
    with (
        running("exact_server.py", "--ttft-ms", 10, "--rate", 400) as a,
        running("exact_server.py", "--ttft-ms", 40) as b,
    ):
        document, folder = evaluated(home, [a, b], rate=(20.0, 60.0), requests=6, repeats=2, workload=str(mine))
    mine.unlink()
    assert [[level.load.words for level in result.levels] for result in document.variants] == [
        ["20 requests/s", "60 requests/s"]
    ] * 2
    assert {row.load for row in document.comparison} == {Load("rate", 20), Load("rate", 60)}
    slower = next(row for row in document.comparison if row.metric == "ttft_ms_p50" and row.load.value == 20)
    assert slower.ratio is not None
    assert slower.ratio > 1
    path = Path(document.options.workload)
    assert path.is_relative_to(home.settings.home) and path.name == "mine.jsonl"
    assert [json.loads(line)["prompt"] for line in path.read_text().splitlines()] == [
        f"question {n}" for n in range(80)
    ]
    assert document.workload.name == "mine"
    rows = pyarrow.parquet.read_table(folder / "records.parquet").to_pylist()
    assert {row["load"] for row in rows} == {"rate-20", "rate-60"}
    assert {row["clock"] for row in rows} == {"intended"}


@pytest.mark.alone
def test_requests_alternate_at_one_stream_and_slices_are_what_is_compared(home: Workspace) -> None:
    """Each prompt is asked of both, one right after the other, in an order that rotates; a gap of 1.5x is decided."""
    with running("exact_server.py", "--rate", 300) as a, running("exact_server.py", "--rate", 200) as b:
        document, folder = evaluated(home, [a, b], concurrency=(1, 2), repeats=2, max_tokens=30)
    rows = pyarrow.parquet.read_table(folder / "records.parquet").to_pylist()
    measured = [row for row in rows if row["load"] == Load("closed", 1).key and not row["warm"]]

    # 1. Six requests of a block, one a slice, the same prompt of both before the next one.
    names = [result.name for result in document.variants]
    sent: list[str] = []
    for block in (0, 1):
        in_order = sorted((row for row in measured if row["block"] == block), key=lambda row: row["sent"])
        assert [row["slice"] for row in in_order] == [number for number in range(6) for _ in names]
        assert all(
            first["prompt"] == second["prompt"] for first, second in zip(in_order[::2], in_order[1::2], strict=True)
        )
        assert len({row["prompt"] for row in in_order}) == 6
        assert all(earlier["end"] <= later["sent"] for earlier, later in itertools.pairwise(in_order))
        sent += [row["variant"] for row in in_order]
    assert sent[::2].count(names[0]) == sent[1::2].count(names[0]), "each as often first as second"

    # 2. Slices are compared: twelve at one stream decide, two at two streams are too few.
    one, two = document.variants[1].levels
    assert (one.repeats, len(one.blocks), two.repeats, len(two.blocks)) == (2, 12, 2, 2)
    rates = {row.load.value: row for row in document.comparison if not row.secondary}
    assert rates[1].outcome == "worse" and rates[1].ci95 is not None and rates[1].ci95[1] < 1
    assert rates[2].why is not None and rates[2].why.cause == "few_repeats"
    own_time = sum(row["end"] - row["sent"] for row in measured if row["variant"] == names[1])
    assert one.duration_s == pytest.approx(own_time), "the other's turns do not count"
    assert {row.secondary for row in document.comparison if row.metric.startswith("ttft")} == {True}


def test_a_server_that_dies_leaves_the_levels_done_and_the_other_variant(home: Workspace) -> None:
    with running("broken_server.py") as sound, running("broken_server.py", "--die-after", 40) as dying:
        document, _ = evaluated(home, [sound, dying], concurrency=(1, 2), requests=6, repeats=4)
    whole, cut = document.variants
    assert [measured_blocks(level) for level in whole.levels] == [4, 4]
    assert 0 < len(cut.levels) <= 2 and measured_blocks(cut.levels[0]) < 4
    assert cut.levels[0].invocations > 0
    assert any("stopped answering; what was measured before is kept" in warning for warning in document.warnings)
    assert all(row.outcome != "better" for row in document.comparison)
    with pytest.raises(GateFailed, match=r"was measured in only|was not measured"):
        evaluations.check_gates(document, evaluations.read_gates(["error_share > 99%"], document.options, waits=True))


@pytest.mark.alone
def test_a_sweep_finds_a_level_for_each_variant(home: Workspace) -> None:
    with running("broken_server.py") as url:
        document, _ = evaluated(home, [url], sweep=("latency_p50<=5s",), sweep_to=2.0, concurrency=(1,), requests=8)
    assert [(level.concurrency, level.slo and level.slo.verdict) for level in document.variants[0].levels] == [
        (1, "kept"),
        (2, "kept"),
    ]
    assert [level.slo.highest for level in document.variants[0].levels if level.slo] == [False, True]
    assert all(level.audit.disturbance.cores >= 1 for level in document.variants[0].levels)


def test_a_search_keeps_its_results_when_the_second_server_dies_before_its_turn(home: Workspace) -> None:
    values = {"sweep": ("latency_p50<=5s",), "sweep_to": 2.0, "concurrency": (1,), "requests": 8}
    with running("broken_server.py") as sound, running("broken_server.py", "--die-after", AFTER_WARMING) as dying:
        document, folder = evaluated(home, [sound, dying], **values)
    whole, removed = document.variants
    assert [level.concurrency for level in whole.levels] == [1, 2] and whole.lost is None
    assert removed.levels == [] and "cannot be reached" in str(removed.lost)
    assert f"{removed.name} could not be measured. {removed.lost}" in document.warnings
    assert "could not be measured" in (folder / "report.html").read_text()
    with pytest.raises(GateFailed, match="error_share was not measured"):
        evaluations.check_gates(document, evaluations.read_gates(["error_share > 99%"], document.options, waits=True))


def test_acceptance_of_a_url_is_read_from_its_own_counters_where_it_tells_them(home: Workspace) -> None:
    vllm = ("exact_server.py", "--ttft-ms", 1, "--rate", 400, "--metrics")
    with (
        running(*vllm, "--drafted", 4, "--accepted", 3) as guessing,
        running(*vllm) as plain,
        running("exact_server.py", "--ttft-ms", 1, "--rate", 400) as silent,
    ):
        document, _ = evaluated(home, [guessing, plain, silent], concurrency=(1,), requests=2, repeats=1)
    assert [result.levels[0].acceptance_rate for result in document.variants] == [0.75, None, None]
    assert [result.speculates for result in document.variants] == [True, False, None]
    assert [row["Acceptance rate"] for row in server_rows(document)] == ["75%", "no speculation", "not told"]
    accepted = [line for line in summary_text(document).splitlines() if line.startswith("127.0.0.1:")][:3]
    assert ["no speculation" in line for line in accepted] == [False, True, False]
    assert ["not told" in line for line in accepted] == [False, False, True]


def test_a_prompt_longer_than_the_context_is_named_by_its_line(home: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "short"}) + "\n" + json.dumps({"prompt": "word " * 3000}) + "\n")
    with pytest.raises(
        InvalidWorkload, match=r"Line 2 of the workload has [\d,]+ tokens .* context of starter \(2,048\)"
    ):
        evaluations.prepare(home, ["starter"], evaluations.read_options(workload=str(file)))
