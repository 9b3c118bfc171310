"""Progress goes with time: phases count by the seconds that they are reckoned to take (634 s told, 64 taken)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from backend.catalog.bundled import models
from backend.channel import FLUSH_S, Channel, JobChannel
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.recipe import recipe
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from backend.worker.kinds.optimize import predicted_seconds
from backend.worker.progress import ChannelProgress


def test_phases_count_by_their_seconds_once_and_others_by_their_weight(tmp_path: Path) -> None:
    Channel(tmp_path / "j-1").open("{}")
    progress = ChannelProgress(
        JobChannel(tmp_path / "j-1" / "1"), 7.0, {"load": 5.0, "optimize": 45.0, "quality": 50.0}
    )
    for name in ("load", "optimize", "load", "quality"):
        progress.phase(name, name, weight=0.1)
    events = [event for _, result in Channel(tmp_path / "j-1").segments(0) for event in result]
    assert [event.progress for event in events] == pytest.approx([0, 0.05, 0.5, 0.5], abs=0.002)


def test_the_log_says_what_is_done_while_it_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a job that nothing interrupted was empty."""
    Channel(tmp_path / "j-1").open("{}")
    progress = ChannelProgress(JobChannel(tmp_path / "j-1" / "1"), 1.0)
    progress.phase("optimize", "Quantizing", total=4, unit="layers")
    for done in range(1, 5):
        progress.advance(done)
    progress.note("Kept in 16 bit: lm_head")
    progress.warn("The disk is slow.")
    first, *steps, note, warning = capsys.readouterr().out.splitlines()
    assert (first, note, warning) == ("Quantizing", "Kept in 16 bit: lm_head", "warning: The disk is slow.")
    assert steps[-1] == "optimize: 4 of 4 layers"


def test_progress_is_kept_four_times_a_second_and_what_says_more_is_all_kept(tmp_path: Path) -> None:
    Channel(tmp_path / "j-1").open("{}")
    channel = JobChannel(tmp_path / "j-1" / "1")
    progress = ChannelProgress(channel, 1.0)
    progress.phase("quality", "Scoring", total=1000)
    began = time.monotonic()
    for done in range(1, 1000):
        progress.advance(done)
    progress.advance(500, bytes=7)
    progress.advance(600, bytes=8)
    flushes = (time.monotonic() - began) / FLUSH_S
    progress.advance(1000)
    events = [
        event for _, result in Channel(tmp_path / "j-1").segments(0) for event in result if event.kind == "progress"
    ]
    assert [(event.done, event.data) for event in events[-4:]] == [
        (999, {}),
        (500, {"bytes": 7}),
        (600, {"bytes": 8}),
        (1000, {}),
    ]
    assert len(events) <= flushes + 5


def test_a_job_reckons_its_phases_before_it_starts() -> None:
    card = models.card("starter")
    assert card is not None
    chosen = recipe.read({"name": "r", "steps": [{"quantize": {"method": "awq"}}]})
    plan = check.check_recipe(card, chosen, TargetFacts()).plan
    assert plan is not None
    seconds = predicted_seconds(OptimizeSpec(model=card, recipe=chosen, plan=plan, target="local"))
    assert set(seconds) == {"load", "optimize", "quality", "write"}
    assert 0.1 < seconds["load"] / sum(seconds.values()) < 0.6, "loading is no seventieth of a small job"


def test_the_log_says_how_far_a_phase_came_that_ended_before_its_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Channel(tmp_path / "j-1").open("{}")
    progress = ChannelProgress(JobChannel(tmp_path / "j-1" / "1"), 1.0)
    for total, last in ((54, 54), (54, 24)):
        progress.phase("measure", "Measuring", total=total, unit="runs")
        for done in range(1, last + 1):
            progress.advance(done)
    progress.phase("report", "Writing the report")
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("Writing the report") - 1] == "measure: 24 of 54 runs"
    assert lines.count("measure: 54 of 54 runs") == 1
