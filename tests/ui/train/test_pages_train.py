"""Training a draft on the screens: the form and what it refuses, the job's charts while it runs and after, the way to
Build."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from backend.domain.jobs.jobs import Event, JobState, PayoffSpec, TrainSpec
from backend.domain.planner import draft_payoff
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import ORIGINAL, read
from backend.hardware import engine_status, probe
from backend.present.words import payoff_map as payoff_words
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models, variants
from backend.settings import ASSETS
from tests import payoffs, studio


def measured(length: float) -> list[dict[str, Any]]:
    return [
        {
            "temperature": at,
            "rate": (length - 1) / 2,
            "length": length,
            "rounds": 40.0,
            "by_position": [length - 1.4, 0.4],
        }
        for at in (0.0, 1.0)
    ]


CURVE = [
    {"step": 0, "seconds": 0.0, "validation": 4.0, "training": None, "acceptance": measured(1.5)},
    {"step": 10, "seconds": 9.0, "validation": 2.0, "training": 3.0, "acceptance": measured(2.1)},
]
TRAINING: dict[str, Any] = {
    "kind": "small",
    "best_step": 10,
    "steps": 10,
    "stopped": "steps",
    "curve": CURVE,
    "acceptance": measured(2.1),
    "data": {
        "prompts": 40,
        "aside": 10,
        "written": 5,
        "answers": 60,
        "greedy": 30,
        "twice": 1,
        "tokens": 9000,
        "answer_tokens": 6000,
    },
    "draft": {"parameters": 1_200_000, "layers": 1},
    "learning_rate": 0.003,
    "seconds": {"answers": 60.0, "training": 70.0},
    "versions": {"torch": "2"},
    "asked": Training(tokens=2, loss="kl").model_dump(mode="json", exclude_none=True),
    "prompts": "the bundled prompts",
    "left_out": 0,
}


def titles(at: AppTest) -> list[str]:
    return [json.loads(chart.proto.spec)["layout"]["title"]["text"] for chart in at.get("plotly_chart")]


def spec(home: Workspace) -> TrainSpec:
    return TrainSpec(model=models.resolve(home, "starter"), options=Training(tokens=2, loss="kl"))


def trained(home: Workspace) -> tuple[JobView, str]:
    """A job that has trained a draft, and the draft, with the weights of the starter's own."""
    first = studio.put(home, spec(home), "Train", JobState.SUCCEEDED)
    recipe = read({"name": "small model", "steps": [{"speculate": {"method": "draft", "tokens": 2}}]})
    artifact_id = studio.artifact(home, first, models.resolve(home, "starter"), recipe=recipe, training=TRAINING)
    shutil.copytree(ASSETS / "starter" / "draft", home.settings.artifacts / artifact_id / "draft")
    result = {"artifact": artifact_id, "training": TRAINING, "bytes_after": 2_400_000, "path": "x"}
    return studio.put(home, spec(home), "Train again", JobState.SUCCEEDED, result=json.dumps(result)), artifact_id


def test_the_form_submits_one_job_with_what_was_asked(studio_home: Workspace) -> None:
    at = studio.open_page("train", model="starter", train_loss="forward KL", train_minutes="5")
    assert "No drafts yet." in studio.says(at)
    at.button(key="train_submit").click().run()
    (job,) = jobs.listing(studio_home)
    specification = jobs.specification(studio_home, job.id)
    assert (job.kind, specification["options"]["loss"], specification["options"]["minutes"]) == ("train", "kl", 5.0)


def test_prompts_that_will_not_do_are_said_on_the_page(studio_home: Workspace, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"prompt": "one"}\n')
    at = studio.open_page("train", model="starter", train_prompts=str(tmp_path / "own.jsonl"))
    assert any("leaves 1 prompts, and a training takes at least 8" in error.value for error in at.error)
    assert at.button(key="train_submit").disabled


def test_a_running_training_draws_its_acceptance_and_its_loss(studio_home: Workspace) -> None:
    events = [Event(kind="point", phase="train", data=point) for point in CURVE]
    job = studio.put(studio_home, spec(studio_home), "Train", JobState.RUNNING, events=events)
    at = studio.open_page("job", id=job.id)
    assert {"Tokens per step", "Loss during training"} <= set(titles(at))


def test_an_ended_training_shows_its_draft_and_leads_to_build(studio_home: Workspace) -> None:
    job, created = trained(studio_home)
    at = studio.open_page("job", id=job.id)
    text = studio.says(at)
    assert (
        "60 answers of the model itself (6,000 tokens, 30 greedy) to 30 prompts and 5 that the model wrote itself"
        in text
    )
    assert "Acceptance by position" in titles(at)
    at.button(key="job_next-step").click().run()
    assert created in str(at.query_params["recipe"])
    assert created in studio.says(studio.open_page("train", model="starter"))


@pytest.mark.with_engines  # the map is of the versions that are installed
def test_a_draft_is_predicted_by_the_map_and_built_with_the_length_that_gains_most(studio_home: Workspace) -> None:
    job, created = trained(studio_home)
    assert payoff_words.measured((1.7, 2.1)) not in studio.says(studio.open_page("job", id=job.id)), "no map yet"
    card, target = models.resolve(studio_home, "starter"), variants.resolve(studio_home, "starter")
    key = draft_payoff.map_key(
        card.revision,
        draft_payoff.weights_hash(ORIGINAL),
        target.serving,
        engine_status.list_versions(studio_home.settings),
        probe.probe(),
    )
    map_document = payoffs.payoff_map(key, model="starter")
    payoff_spec = PayoffSpec(
        variants=(target,),
        probes=draft_payoff.make_probes(card),
        prompts="p",
        revision=card.revision,
        weights=key.weights,
    )
    studio.put(
        studio_home,
        payoff_spec,
        "Map",
        JobState.SUCCEEDED,
        result=json.dumps({"map": map_document.model_dump(mode="json")}),
    )
    draft = models.resolve_draft(studio_home, card, created)
    assert draft is not None
    shape = draft_payoff.DraftShape(parameters=draft.parameters, layers=draft.layers)
    (tokens, _), message = (
        map_document.best_known(1, shape, (1.7, 2.1)),
        payoff_words.predictions(map_document, shape, (1.7, 2.1)),
    )
    at = studio.open_page("job", id=job.id)
    assert all(each in studio.says(at) for each in message)
    at.button(key="job_next-step").click().run()
    studio.check(at)
    assert f"tokens: {tokens}" in str(at.query_params["recipe"])
    built = studio.says(at)
    assert (
        all(each in built for each in message) and "by the draft's own training, only an evaluation can tell" in built
    )
