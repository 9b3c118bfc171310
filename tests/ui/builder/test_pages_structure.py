"""Structured pruning on the screens: its options on Build, the plan's words, and what a finished job removed."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from backend.domain.jobs.jobs import JobState
from backend.domain.recipe import step_words
from backend.domain.recipe.recipe import Prune, read
from backend.service import Workspace
from backend.service.plans import recipe_files
from backend.store import queue
from tests import studio

pytestmark = pytest.mark.without_supervisor

DEPTH = read({"name": "r", "steps": [{"prune": {"method": "depth"}}]})
RECORD = {
    "method": "depth",
    "importance": "similarity",
    "before": {"layers": 3, "intermediate": 1536, "heads": 8, "kv_heads": 2, "hidden": 512},
    "after": {"layers": 2, "intermediate": 1536, "heads": 8, "kv_heads": 2, "hidden": 512},
    "removed": [1],
    "ranking": [
        {"name": f"layer {number}", "importance": value, "removed": number == 1}
        for number, value in enumerate((0.5, 0.1, 0.4))
    ],
    "seconds": 3.0,
}


def pruning_of(at: AppTest) -> Prune:
    address = at.query_params["recipe"]
    step = recipe_files.read_text(address if isinstance(address, str) else address[0]).steps[0]
    assert isinstance(step, Prune)
    return step


def test_build_makes_a_structured_pruning_by_clicks(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="name: r\nsteps:\n- prune: {method: wanda}\n")
    # 1. The method brings its own options.
    next(box for box in at.selectbox if box.label == "Method").select("width").run()
    studio.check(at)
    labels = {field.label for field in (*at.selectbox, *at.number_input)}
    assert {"What becomes narrower", "Share of the layers' time", "Most bytes"} <= labels
    assert not labels & {"Sparsity", "Pattern"}
    ranked = next(box for box in at.selectbox if box.label == "Ranked by")
    assert "similarity" not in ranked.options and "loss" not in ranked.options
    ranked.select("gradients").run()
    studio.check(at)
    assert pruning_of(at).importance == "gradients"
    assert step_words.plan_title(pruning_of(at)).endswith("ranked by gradients of the loss")
    assert "From 1,536 neurons to 1,024 neurons" in studio.says(at)
    # 2. One target takes the place of another.
    for label, value in (("Share of the layers' time", 0.5), ("Share of the parameters", 0.3)):
        next(field for field in at.number_input if field.label == label).set_value(value).run()
        studio.check(at)
    assert (pruning_of(at).cut_time, pruning_of(at).cut_parameters) == (None, 0.3)
    # 3. A target that no structure reaches is refused with the nearest.
    next(field for field in at.number_input if field.label == "Share of the parameters").set_value(0.95).run()
    studio.check(at)
    assert "is beyond 128 neurons, the least of starter: use" in studio.says(at)


def test_a_finished_job_says_which_layers_went(studio_home: Workspace) -> None:
    spec = studio.optimize_spec(studio_home, recipe=DEPTH)
    studio.supervisor(studio_home)
    job = studio.put(studio_home, spec, "Optimize starter with r", JobState.SUCCEEDED)
    artifact = studio.artifact(studio_home, job, spec.model, recipe=DEPTH, structure=RECORD)
    with studio_home.store.session() as session:
        queue.get(session, job.id).result = json.dumps({"artifact": artifact})
    at = studio.open_page("job", id=job.id)
    assert "From 3 to 2 layers; the removed ones, counted from 0, are 1" in studio.says(at)
    (chart,) = [
        document
        for drawn in at.get("plotly_chart")
        if (document := json.loads(drawn.proto.spec))["layout"]["title"]["text"] == "Importance of each layer"
    ]
    assert chart["data"][0]["y"] == [0.5, 0.1, 0.4] and chart["data"][1]["x"] == [1]
