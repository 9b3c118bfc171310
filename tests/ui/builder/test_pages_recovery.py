"""Recovery on the screens: its curve while the job runs and after, what it gained in words, and its options on
Build."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from backend.domain.jobs.jobs import Event, JobState
from backend.domain.recipe.recipe import read
from backend.domain.recipe.recovery import Recover, RecoverQuantized
from backend.service import Workspace
from backend.service.plans import recipe_files
from tests import studio

pytestmark = pytest.mark.without_supervisor

RECIPE = read({"name": "r", "steps": [{"prune": {"method": "wanda", "pattern": "2:4", "recover": True}}]})
CURVE = [
    {"step": 0, "validation": 0.2, "training": None},
    {"step": 5, "validation": 0.1, "training": 0.18},
    {"step": 10, "validation": 0.15, "training": 0.08},
]
DATA = {name: {"samples": 4, "length": 512, "tokens": 2048, "sha256": "ab"} for name in ("training", "validation")}
RESULT: dict[str, Any] = {
    "artifact": "a-000000000000",
    "recovery": {
        "asked": Recover().all_options(),
        "objective": "kl",
        "seconds": 61.0,
        "improved": True,
        "best_step": 5,
        "steps": 10,
        "stopped": "patience",
        "loss_before": 0.2,
        "loss_after": 0.1,
        "curve": CURVE,
        "data": DATA,
        "quality": {
            "original": {"perplexity": 40.0, "kl_mean": 0.0},
            "pruned": {"perplexity": 50.0, "kl_mean": 0.2},
            "recovered": {"perplexity": 44.0, "kl_mean": 0.1},
        },
    },
}


def charts(at: AppTest) -> list[dict[str, Any]]:
    """The loss curves on the page."""
    documents = [json.loads(chart.proto.spec) for chart in at.get("plotly_chart")]
    return [chart for chart in documents if chart["layout"]["title"]["text"] == "Loss during recovery"]


def job_page(home: Workspace, state: JobState, **changes: Any) -> AppTest:
    spec = studio.optimize_spec(home, recipe=RECIPE)
    studio.supervisor(home)
    return studio.open_page("job", id=studio.put(home, spec, "Optimize starter with r", state, **changes).id)


def test_a_finished_job_says_what_was_gained_and_draws_the_curve(studio_home: Workspace) -> None:
    at = job_page(studio_home, JobState.SUCCEEDED, result=json.dumps(RESULT))
    text = studio.says(at)
    assert "50.00 after pruning and 44.00 after recovery: recovery won back 60% of what pruning cost." in text
    assert "It stopped early, at step 10 of" in text
    assert "Perplexity before pruning 40.0" in text and "Perplexity after recovery 44.0" in text
    assert "learned from 2,048 tokens of the calibration text" in text
    (chart,) = charts(at)
    assert [trace["name"] for trace in chart["data"]] == [
        "Validation",
        "Training, mean since the previous point",
        "Best",
    ]


def test_a_job_with_both_recoveries_says_what_each_gained(studio_home: Workspace) -> None:
    quantized = {
        **RESULT["recovery"],
        "asked": RecoverQuantized().all_options(),
        "quality": {
            "original": {"perplexity": 40.0, "kl_mean": 0.0},
            "quantized": {"perplexity": 45.0, "kl_mean": 0.1},
            "recovered": {"perplexity": 44.5, "kl_mean": 0.08},
        },
    }
    steps = [RECIPE.steps[0].model_dump(mode="json"), {"quantize": {"method": "awq", "recover": True}}]
    spec = studio.optimize_spec(studio_home, recipe=read({"name": "r", "steps": steps}))
    result = json.dumps(RESULT | {"quantized_recovery": quantized})
    studio.supervisor(studio_home)
    done = studio.put(studio_home, spec, "Optimize starter with r", JobState.SUCCEEDED, result=result)
    at = studio.open_page("job", id=done.id)
    text = studio.says(at)
    assert "recovery won back 60% of what pruning cost." in text
    assert "0.1000 after quantization and 0.0800 after recovery: recovery won back 20% of what quantization" in text
    assert "Perplexity after quantization 45.0" in text and "Perplexity of the original 40.0" in text
    assert "those of quantization, before recovery" in text
    assert len(charts(at)) == 2


def test_the_second_recovery_of_a_job_has_a_curve_of_its_own(studio_home: Workspace) -> None:
    steps = [RECIPE.steps[0].model_dump(mode="json"), {"quantize": {"method": "awq", "recover": True}}]
    spec = studio.optimize_spec(studio_home, recipe=read({"name": "r", "steps": steps}))
    points = [*CURVE, {"step": 0, "validation": 0.05, "training": None}]
    events = [Event(kind="point", phase="recover", data=point) for point in points]
    studio.supervisor(studio_home)
    job = studio.put(studio_home, spec, "Optimize starter with r", JobState.RUNNING, events=events)
    (chart,) = charts(studio.open_page("job", id=job.id))
    assert chart["data"][0]["y"] == [0.05]


def test_build_offers_it_for_weights_in_groups(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="name: r\nsteps:\n- quantize: {method: awq}\n")
    next(box for box in at.checkbox if box.label == "Recover").check().run()
    studio.check(at)
    next(field for field in at.selectbox if field.label == "What is learned").set_value("weights").run()
    studio.check(at)
    reserved = at.query_params["recipe"]
    text = reserved if isinstance(reserved, str) else reserved[0]
    assert recipe_files.read_text(text).steps[0].recover == RecoverQuantized(learn="weights")  # type: ignore[union-attr]
    assert "Recovery holds the whole model in memory" in studio.says(at)


def test_a_running_job_draws_the_curve_so_far(studio_home: Workspace) -> None:
    events = [
        Event(kind="phase", phase="recover", message="Recovering by a short fine-tune", done=0, total=100, unit="steps")
    ]
    events += [Event(kind="point", phase="recover", data=point) for point in CURVE[:2]]
    at = job_page(studio_home, JobState.RUNNING, events=events)
    (chart,) = charts(at)
    assert chart["data"][0]["y"] == [0.2, 0.1]
    assert "Recovery" in studio.says(at)


def test_before_it_has_begun_the_place_is_kept_and_other_jobs_have_none(studio_home: Workspace) -> None:
    at = job_page(studio_home, JobState.RUNNING)
    assert "The loss curve appears here when recovery starts." in studio.says(at)
    other = studio.open_page("job", id=studio.optimize_job(studio_home, JobState.RUNNING).id)
    assert "Recovery" not in studio.says(other)


def test_build_switches_recovery_on_and_shows_its_options(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="name: r\nsteps:\n- prune: {method: wanda}\n")
    assert not [field for field in at.number_input if field.label == "Recovery steps"]
    next(box for box in at.checkbox if box.label == "Recover").check().run()
    studio.check(at)
    reserved = at.query_params["recipe"]
    text = reserved if isinstance(reserved, str) else reserved[0]
    assert recipe_files.read_text(text).steps[0].recover == Recover()  # type: ignore[union-attr]
    next(field for field in at.number_input if field.label == "Recovery steps").set_value(33).run()
    studio.check(at)
    reserved = at.query_params["recipe"]
    text = reserved if isinstance(reserved, str) else reserved[0]
    assert "recover: {steps: 33}" in text
    assert "Recovery holds the whole model in memory" in studio.says(at)
