"""Payoff maps on the pages: on Build beside the speculate step, and on the page of the job that measured one."""

from __future__ import annotations

from pathlib import Path

from app.jobs.kind_views import find_next_step
from backend import settings
from backend.domain.jobs.jobs import JobState, PayoffSpec
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import PayoffMap
from backend.domain.recipe.recipe import ORIGINAL
from backend.hardware import engine_status, probe
from backend.present.words import payoff_map as words
from backend.service import Workspace
from backend.service.evaluations import payoff as measuring
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models, variants
from backend.service.plans import recipe_files
from tests import payoffs, studio


def measured(home: Workspace) -> tuple[JobView, PayoffMap]:
    """A job that has measured a map of the starter on this machine, its costs made up."""
    serving = recipe_files.read_file(Path("draft")).serving
    card, target = models.resolve(home, "starter"), variants.resolve(home, "starter", serving=serving)
    weights = draft_payoff.weights_hash(ORIGINAL)
    spec = PayoffSpec(
        variants=(target,),
        probes=draft_payoff.make_probes(card),
        prompts="prompts.jsonl",
        revision=card.revision,
        weights=weights,
    )
    key = draft_payoff.map_key(
        card.revision, weights, target.serving, engine_status.list_versions(settings.load()), probe.probe()
    )
    map_document = payoffs.payoff_map(key, model="starter")
    result = '{"map": ' + map_document.model_dump_json() + "}"
    return studio.put(home, spec, measuring.title(spec), JobState.SUCCEEDED, result=result), map_document


def test_build_says_beside_the_speculate_step_what_is_not_measured_yet(studio_home: Workspace) -> None:
    text = studio.says(studio.open_page("build", model="starter", recipe="draft"))
    assert "Not measured yet for this model" in text and "payoff map" not in text
    assert "Not measured yet" not in studio.says(studio.open_page("build", model="starter", recipe="ngram"))


def test_build_answers_for_the_recipes_draft_and_predicts_from_the_map(studio_home: Workspace) -> None:
    _, result = measured(studio_home)
    at = studio.open_page("build", model="starter", recipe="draft")
    message, card = studio.says(at), models.resolve(studio_home, "starter")
    draft = models.resolve_draft(studio_home, card, "auto")
    assert draft is not None
    shape = draft_payoff.DraftShape(parameters=draft.parameters, layers=draft.layers)
    assert all(each in message for each in words.answers(result, shape))
    assert "The cost of speculation was measured here on 2026-11-23 (payoff map)" in message
    assert "of the payoff map measured here on 2026-11-23" in message


def test_the_jobs_page_answers_for_a_draft_of_any_size_and_leads_on_to_build(studio_home: Workspace) -> None:
    job, result = measured(studio_home)
    at = studio.open_page("job", id=job.id)
    assert all(each in studio.says(at) for each in words.answers(result, draft_payoff.draft_shape(5_000_000)))
    at.number_input(key="job_payoff-size").set_value(40.0).run()
    studio.check(at)
    assert all(each in studio.says(at) for each in words.answers(result, draft_payoff.draft_shape(40_000_000)))
    assert "Build with a draft" in [button.label for button in at.button]
    recipe = recipe_files.read_text(
        find_next_step(studio_home, job, jobs.specification(studio_home, job.id)).params["recipe"]
    )
    assert recipe.serving.enforce_eager and recipe.step("speculate") is not None, "the settings that the map holds for"
