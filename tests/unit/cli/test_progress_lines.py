"""Progress of a job that is waited for, where standard error is a pipe: a line now and then, up to its end."""

from __future__ import annotations

import io
from itertools import count, pairwise

import pytest

from backend.cli import output
from backend.domain.jobs.jobs import JobState
from backend.service.jobs.jobs import JobView


def job(progress: float, state: JobState = JobState.RUNNING, phase: str = "measure") -> JobView:
    return JobView.model_construct(
        title="Evaluate a",
        state=state,
        phase=phase,
        message="Measuring",
        progress=progress,
        eta_s=None,
        cancel_requested=False,
    )


def printed(monkeypatch: pytest.MonkeyPatch, *jobs: JobView, every_s: float) -> list[str]:
    """The lines, where `every_s` passes from each look at the job to the next."""
    lines, moments = io.StringIO(), count(0.0, every_s)
    monkeypatch.setattr(output, "err", lines)
    printer = output.ProgressPrinter(lambda: next(moments))
    for each in jobs:
        printer(each)
    return lines.getvalue().splitlines()


def test_a_long_phase_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(0.28 + 0.005 * number) for number in range(100)]
    lines = printed(monkeypatch, *jobs, job(1.0, JobState.SUCCEEDED, "report"), every_s=0.25)
    shares = [int(line.rsplit(", ", 1)[1].removesuffix("%")) for line in lines[:-1]]
    assert (shares[0], len(shares)) == (28, 5)
    assert all(9 <= later - earlier <= 11 for earlier, later in pairwise(shares))
    assert lines[-1] == "Evaluate a: succeeded"


def test_a_slow_phase_has_a_line_every_half_minute_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    styles = [job(0.28)] * 200 + [job(0.29)] * 200
    assert printed(monkeypatch, *styles, every_s=1.0) == [
        "Evaluate a: running, Measuring, 28%",
        "Evaluate a: running, Measuring, 29%",
    ]
