"""What an evaluation warns of besides its figures: a start that compiled what was compiled before."""

from __future__ import annotations

from pathlib import Path

from backend.channel import Channel, JobChannel
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.workload.workload import parse_workload
from backend.worker.kinds import evaluate
from backend.worker.measuring.measurement import Measurement
from backend.worker.progress import ChannelProgress
from tests import simulated

LOST = "'function' object has no attribute 'finalize_loading'"


def test_a_start_that_compiled_again_says_why(tmp_path: Path) -> None:
    """Nobody was told."""
    again, cached = Startup(kind="cold", compiled_again=LOST), Startup(kind="cached")
    results = [
        simulated.result(name, [simulated.level(1)]).model_copy(update={"starts": starts})
        for name, starts in (("starter", [cached]), ("w8a8", [cached, again]))
    ]
    spec = EvaluateSpec(variants=tuple(result.variant for result in results), options=EvaluateOptions())
    Channel(tmp_path / "j-1").open(spec.model_dump_json())
    channel = JobChannel(tmp_path / "j-1" / "1")
    workload = parse_workload("one", b'{"prompt": "a"}\n')
    measurement = Measurement(spec, channel, workload, ChannelProgress(channel, 1.0))
    warnings = evaluate._warnings(measurement, results)
    assert [each for each in warnings if "compiled" in each] == [f"w8a8 was compiled again at start: {LOST}."]
