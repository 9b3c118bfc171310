"""Time to ready in words and as bars: each kind of start by its fastest."""

from __future__ import annotations

import plotly.graph_objects
import pytest

from backend.domain.evaluation.memory_limit import BANDWIDTH, limit_ms, times_the_limit
from backend.domain.evaluation.resource_use import StepBytes
from backend.domain.evaluation.startup import Startup
from backend.present.charts import resources
from backend.present.words.measurements import memory_limit, readiness
from tests import simulated

COLD = Startup(
    kind="cold", processes_s=10.0, weights_s=1.0, compile_s=30.0, warm_up_s=2.0, listen_s=1.0, first_answer_s=0.5
)
CACHED = COLD.model_copy(update={"kind": "cached", "compile_s": 3.0})


def test_the_fastest_start_of_each_kind_stands_with_its_phases() -> None:
    changed = simulated.result("m", []).model_copy(
        update={"starts": [COLD, CACHED, CACHED.model_copy(update={"weights_s": 9.0})]}
    )
    assert readiness(changed) == (
        "17.0 s, compile cache loaded (processes and imports 10.0 s, weights 1.00 s, compilation 3.00 s, warm-up 2.00 "
        "s, "
        "listening 1.00 s, first answer 0.500 s); 44.0 s, compiled at start (processes and imports 10.0 s, weights "
        "1.00 s, "
        "compilation 30.0 s, warm-up 2.00 s, listening 1.00 s, first answer 0.500 s)"
    )


def test_a_start_beside_another_is_no_time_to_ready() -> None:
    changed = CACHED.model_copy(update={"beside": True})
    result = simulated.result("m", []).model_copy(update={"starts": [COLD, changed]})
    assert readiness(result).startswith("44.0 s, compiled at start") and "cache loaded" not in readiness(result)
    alone = result.model_copy(update={"starts": [changed], "ready_seconds": None})
    assert readiness(alone) == "not measured: it started together with another server"
    created = simulated.evaluation().model_copy(update={"variants": [result, alone]})
    assert [label for label, _ in resources.fastest_starts(created)] == ["m, compiled at start"]


def test_without_phases_the_whole_stands_alone() -> None:
    assert readiness(simulated.result("m", [])) == "24.0 s"


def test_a_time_a_token_stands_beside_what_reading_memory_takes() -> None:
    """100 MB at 20 GB/s are 5 ms a step; two streams of 100 + 50 / 2 tokens read 1 MB more each, 4 % of it."""
    level = simulated.level(2)
    at = level.model_copy(
        update={"input_tokens": 100.0, "output_tokens": 50.0, "concurrency": 2, "acceptance_rate": None}
    )
    step = StepBytes(weights=100_000_000, cache_a_token=24_000)
    assert limit_ms(step, at, 20e9) == pytest.approx(5.3)
    assert at.tpot_ms is not None
    assert times_the_limit(step, at, 20e9) == pytest.approx(at.tpot_ms.p50 / 5.3)
    assert times_the_limit(step, at.model_copy(update={"acceptance_rate": 0.5}), 20e9) is None
    changed = simulated.result("m", [at]).model_copy(update={"step": step})
    made_there = simulated.evaluation().model_copy(update={"hardware": {BANDWIDTH: 20e9}})
    assert memory_limit(made_there, changed).endswith(
        "times at 2 streams the time of reading 100 MB of weights per step at 20.0 GB/s"
    )
    assert memory_limit(simulated.evaluation(), changed) == "not known"


def test_each_kind_of_start_is_a_bar_of_its_phases() -> None:
    evaluation = simulated.evaluation()
    first, *others = evaluation.variants
    changed = evaluation.model_copy(update={"variants": [first.model_copy(update={"starts": [COLD, CACHED]}), *others]})
    figure = resources.startups(changed)
    plotly.graph_objects.Figure(figure)
    assert [sum(trace["x"][bar] for trace in figure["data"]) for bar in (0, 1)] == [44.5, 17.5]
    assert figure["data"][0]["y"] == [f"{first.name}<br>compiled at start", f"{first.name}<br>compile cache loaded"]
    assert resources.startups_alt(changed).startswith(f"Time to ready: {first.name}, compiled at start 44.0 s; ")


def test_nothing_started_here_is_said() -> None:
    assert (
        resources.startups(simulated.evaluation())["layout"]["annotations"][0]["text"] == "No server was started here."
    )
