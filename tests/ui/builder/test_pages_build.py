"""Build: how a recipe begins, steps that are added and removed, what is greyed and why, and the job that it becomes."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.builder import recipe_form
from backend.domain.jobs.jobs import JobState
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe import step_words
from backend.domain.recipe.quantization_engines import ENGINES
from backend.domain.recipe.recipe import Quantize, Recipe, read
from backend.domain.rules import check as rules
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.models import models
from backend.service.plans import cases, optimize, recipe_files
from backend.settings import ASSETS
from tests import homes, simulated, studio
from tests.helpers.build_page import W8A8, built, field, labelled


def test_an_empty_recipe_says_what_will_stand_there(studio_home: Workspace) -> None:
    at = studio.open_page("build")
    text = studio.says(at)
    assert "No steps yet" in text
    assert "Optimize job none" in text and "Duration unknown" not in text
    assert studio.param(at, "model") == "starter"
    assert built(at).steps == ()


def test_it_begins_with_the_newest_import_by_its_short_name(studio_home: Workspace, tmp_path: Path) -> None:
    """The folder is in the field's help; a later evaluation of another model comes before the import."""
    folders = [shutil.copytree(ASSETS / "starter" / "draft", tmp_path / name / "tiny") for name in ("one", "two")]
    first, second = (models.remember(studio_home, str(folder), name=folder.parent.name) for folder in folders)
    at = studio.open_page("build")
    field = at.selectbox(key=f"build-model-{second.source}")
    assert studio.param(at, "model") == field.value == second.source and field.help.endswith(
        f"Chosen: `{second.source}`"
    )
    assert field.options[:3] == ["two", "one", "starter"] and not any("/two" in option for option in field.options)
    document = simulated.evaluation(["one"], [1.0])
    variant = document.variants[0].variant.model_copy(update={"source": first.source})
    results = [document.variants[0].model_copy(update={"variant": variant})]
    studio.evaluation(studio_home, document.model_copy(update={"variants": results}))
    assert studio.param(studio.open_page("build"), "model") == first.source
    assert studio.param(studio.open_page("train"), "model") == first.source


@pytest.mark.parametrize(
    ("kind", "label", "value"),
    [
        ("selectbox", "Group size", 64),
        ("text_input", "Recipe name", "another"),
        ("selectbox", "Or start from a bundled recipe", "gptq"),
    ],
)
def test_what_was_drawn_before_the_recipe_changed_changes_nothing(
    studio_home: Workspace, kind: str, label: str, value: object
) -> None:
    """A browser that is busy still sends the widgets of the recipe before."""
    at = studio.open_page("build", model="starter", recipe="awq")
    drawn_before = next(each for each in getattr(at, kind) if each.label == label)
    before = built(at)
    at.session_state[recipe_form.REVISION] += 1
    drawn_before.set_value(value).run()
    studio.check(at)
    assert built(at) == before


def test_a_bundled_recipe_of_the_url_is_shown_with_its_needs(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="w8a8")
    text = studio.says(at)
    assert "1. Quantize to 8 bits (w8a8)" in text
    assert "Disk" in text and "optimized weights + draft" in text
    assert built(at) == recipe_files.read_file(Path("w8a8"))
    assert not at.button(key="build_optimize").disabled
    assert [element.value for element in at.success]


@pytest.mark.parametrize(("goal", "technique"), [("cost", "quantize"), ("latency", "quantize"), ("size", "quantize")])
def test_a_goal_starts_from_a_valid_recipe(studio_home: Workspace, goal: str, technique: str) -> None:
    at = studio.click(studio.open_page("build"), f"build_goal-{goal}")
    assert built(at).step(technique)
    assert not at.error


def test_steps_are_added_where_they_run_removed_and_taken_back(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe="name: mine\nsteps:\n- speculate: {method: ngram}\n")
    at.session_state[recipe_form.MENU] = True
    add = next(button for button in at.button if button.label == "Quantize to 8 bits (w8a8)")
    studio.click(at, str(add.key))
    assert [step.technique for step in built(at).steps] == ["quantize", "speculate"]
    assert not at.session_state[recipe_form.MENU], "the menu closes, so that the step is seen"
    labelled(at, "Remove", 1)
    assert [step.technique for step in built(at).steps] == ["quantize"]
    for _ in range(2):
        labelled(at, "Undo")
    assert [step.technique for step in built(at).steps] == ["speculate"]


def test_an_empty_name_is_refused_and_nothing_is_lost(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe=W8A8)
    next(box for box in at.text_input if box.label == "Recipe name").set_value("").run()
    studio.check(at)
    assert "name" in at.error[0].value
    assert not at.success, "no green box beside the red one"
    assert built(at).name == "mine"


def test_an_impossible_stack_has_its_reasons_and_the_nearest_recipe(studio_home: Workspace) -> None:
    twice = "name: twice\nsteps:\n- quantize: {method: w8a8}\n- quantize: {method: awq}\n"
    at = studio.open_page("build", recipe=twice)
    assert any("2 times" in error.value for error in at.error)
    assert at.button(key="build_optimize").disabled
    studio.click(at, "build_nearest")
    assert len(built(at).steps) == 1
    assert not at.button(key="build_optimize").disabled


def test_a_greyed_choice_is_swapped_in(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe=W8A8)
    assert "quantizes the weights 2 times" in studio.says(at)
    labelled(at, "Use quantize awq instead")
    assert [getattr(step, "method", None) for step in built(at).steps] == ["awq"]
    assert not at.button(key="build_optimize").disabled


def test_what_can_be_had_instead_keeps_the_other_steps(studio_home: Workspace) -> None:
    card = models.resolve(studio_home, "starter")
    chosen = read({"steps": [{"quantize": {"method": "w8a8"}}, {"speculate": {"method": "ngram"}}]})
    instead = {
        getattr(choice.step, "method", None): choice.instead
        for choice in cases.additions(studio_home, card, chosen, cases.resolve(studio_home, card, chosen))
    }
    assert instead["awq"] is not None and step_words.steps_line(instead["awq"]) == "quantize awq + speculate ngram"
    assert instead["w8a8"] is None and instead["ngram"] is None


def test_an_imported_folder_can_be_chosen(studio_home: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    shutil.copytree(ASSETS / "starter" / "draft", path)
    models.remember(studio_home, str(path))
    at = studio.open_page("build")
    assert "mine" in at.selectbox[0].options and not any(str(path) in option for option in at.selectbox[0].options)


def test_an_earlier_job_like_it_says_how_long(studio_home: Workspace) -> None:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    at = studio.open_page("build", recipe="w8a8")
    assert "duration unknown" in at.success[0].value and "no job of this kind" in studio.says(at)
    for minutes in (2, 4):
        studio.optimize_job(
            studio_home, JobState.SUCCEEDED, started_at=begun, finished_at=begun + timedelta(minutes=minutes)
        )
    at = studio.open_page("build", recipe="w8a8")
    assert "between 2 and 4 min" in at.success[0].value
    assert "as long as 2 earlier jobs like it took" in studio.says(at)
    assert "| Optimize job | between 2 and 4 min |" in studio.says(at), "the table says what the banner says"
    assert "Unknown: job duration" not in studio.says(at)
    planned = studio.open_page("build", recipe="w8a8", target="ml.g5.xlarge")
    assert "between 2 and 4 min here" in planned.success[0].value
    assert "| To make it on ml.g5.xlarge |" in studio.says(planned), "the table is of another machine, and says so"


def test_a_double_click_is_one_job_and_leads_to_it(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="w8a8")
    studio.click(at, "build_optimize")
    assert at.title[0].value == "Optimize starter with w8a8"
    at.switch_page("../pages/build.py").run()
    assert len(jobs.listing(studio_home)) == 1 and "Open the job" in studio.links(at)
    studio.click(at, "build_again")
    studio.click(at, "build_optimize")
    assert len(jobs.listing(studio_home)) == 2


def test_the_same_key_is_one_job_whoever_clicks(studio_home: Workspace) -> None:
    prepared = homes.prepare(studio_home, "starter", recipe_files.read_file(Path("w8a8")))
    first, second = (optimize.submit(studio_home, prepared, submission="optimize-1") for _ in range(2))
    assert first.id == second.id


def test_a_missing_engine_is_told_before_the_start(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="w8a8-compiled")
    assert any("install" in error.value for error in at.error)
    assert at.button(key="build_optimize").disabled


def test_steps_of_a_text_out_of_order_are_drawn_in_the_order_in_which_they_run(studio_home: Workspace) -> None:
    text = "name: mine\nsteps:\n- speculate: {method: ngram}\n- quantize: {method: w8a8}\n"
    at = studio.open_page("build", recipe=text)
    titles = [each.value for each in at.markdown if each.value.startswith(("**1", "**2"))]
    assert titles[0].startswith("**1. Quantize") and titles[1].startswith("**2. Speculate")
    labelled(at, "Remove", 0)
    assert [step.technique for step in built(at).steps] == ["speculate"]


def test_what_can_be_added_names_the_first_new_reason(studio_home: Workspace) -> None:
    card = models.resolve(studio_home, "starter")
    chosen = read({"steps": [{"speculate": {"method": "ngram"}}]})
    additions = cases.additions(studio_home, card, chosen, cases.resolve(studio_home, card, chosen))
    reasons = {(choice.step.technique, getattr(choice.step, "method", None)): choice.reason for choice in additions}
    assert reasons["quantize", "w8a8"] is None
    assert "more than once" in str(reasons["speculate", "draft"])
    # A file for llama.cpp brings its engine with it.
    reasons = {choice.step: choice.reason for choice in cases.additions(studio_home, card, Recipe(), None)}
    assert reasons[Quantize(method="gguf")] is None


def test_a_bundled_recipe_is_offered_with_its_sentence_and_taken(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter")
    box = next(box for box in at.selectbox if box.label == "Or start from a bundled recipe")
    assert box.options == [f"{name}: {recipe_files.describe(name)}" for name in recipe_files.bundled_names()]
    box.select(f"sparsegpt-2-4: {recipe_files.describe('sparsegpt-2-4')}").run()
    studio.check(at)
    assert built(at) == recipe_files.read_file(Path("sparsegpt-2-4"))
    at.selectbox(key=field(at, "engine")).select("llm-compressor").run()
    studio.check(at)
    assert ENGINES["llm-compressor"].prefer in studio.says(at)
    assert built(at).steps == recipe_files.read_file(Path("sparsegpt-2-4-llm-compressor")).steps


@pytest.mark.parametrize(
    ("text", "target", "times"),
    [
        (W8A8, "local", 1),
        ("name: refused\nsteps:\n- quantize: {method: awq, group_size: 77}\n", "local", 1),
        (W8A8, "ml.g5.12xlarge", 2),
        (W8A8, "auto", 2),
    ],
    ids=["valid", "refused", "planned: there, and here where the job runs", "auto: there, and here"],
)
def test_a_rerun_decides_once_whether_the_recipe_is_valid(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch, text: str, target: str, times: int
) -> None:
    """Other recipes are tried on purpose: those with one step more, and what could be had instead."""
    at = studio.open_page("build", model="starter", recipe=text, target=target)
    decided, decide = [], rules.check_recipe

    def counted(model: ModelFacts, recipe: Recipe, facts: TargetFacts, *, suggest: bool = True) -> Verdict:
        decided.append(recipe.steps)
        return decide(model, recipe, facts, suggest=suggest)

    monkeypatch.setattr(rules, "check_recipe", counted)
    at.run()
    studio.check(at)
    assert decided.count(recipe_files.read_text(text).steps) == times and len(decided) > times


def test_a_click_before_the_browser_has_the_new_address_submits_what_was_typed(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="ngram")
    before = {name: studio.param(at, name) for name in at.query_params}
    next(field for field in at.number_input if field.label == "Draft tokens").set_value(2).run()
    for name in [*at.query_params]:
        del at.query_params[name]
    at.query_params.update(before)  # what the browser had when the click was made
    at.button(key="build_optimize").click().run()
    [job] = jobs.listing(studio_home)
    assert jobs.specification(studio_home, job.id)["recipe"]["steps"][0]["speculate"]["tokens"] == 2
