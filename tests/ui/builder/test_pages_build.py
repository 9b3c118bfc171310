"""Build: every way to a recipe, every refusal, and one job however often Optimize is clicked."""

from __future__ import annotations

import base64
import shutil
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app import url_parameters
from app.builder import recipe_form, recipe_options
from app.builder.serving_options import LIMIT_OPTIONS, SERVING_OPTIONS
from backend.domain.errors import InvalidRecipe
from backend.domain.jobs.jobs import JobState
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe import step_words
from backend.domain.recipe.quantization_engines import ENGINES
from backend.domain.recipe.recipe import Quantize, Recipe, read
from backend.domain.recipe.speculation import SPECULATE
from backend.domain.rules import check as rules
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.models import models
from backend.service.plans import cases, optimize, recipe_files
from backend.settings import ASSETS
from tests import homes, simulated, studio

BOMB = base64.urlsafe_b64encode(zlib.compress(b"#" * 2_000_000)).decode()
W8A8 = "name: mine\nsteps:\n- quantize: {method: w8a8}\n"


def built(at: AppTest) -> Recipe:
    """What the URL holds."""
    return recipe_files.read_text(param(at, "recipe"))


def param(at: AppTest, name: str) -> str:
    value = at.query_params[name]
    return value if isinstance(value, str) else value[0]


def click(at: AppTest, key: str) -> AppTest:
    at.button(key=key).click().run()
    studio.check(at)
    return at


def labelled(at: AppTest, label: str, index: int = 0) -> AppTest:
    """Click the button of that label."""
    [button for button in at.button if button.label == label][index].click().run()
    studio.check(at)
    return at


def paste(at: AppTest, text: str) -> AppTest:
    at.text_area[0].set_value(text)
    return click(at, "build_read-yaml")


def test_an_empty_recipe_says_what_will_stand_there(studio_home: Workspace) -> None:
    at = studio.open_page("build")
    text = studio.says(at)
    assert "No steps yet" in text
    assert "Optimize job none" in text and "Duration unknown" not in text
    assert param(at, "model") == "starter"
    assert built(at).steps == ()


def test_it_begins_with_the_newest_import_by_its_short_name(studio_home: Workspace, tmp_path: Path) -> None:
    """The folder is in the field's help; a later evaluation of another model comes before the import."""
    folders = [shutil.copytree(ASSETS / "starter" / "draft", tmp_path / name / "tiny") for name in ("one", "two")]
    first, second = (models.remember(studio_home, str(folder), name=folder.parent.name) for folder in folders)
    at = studio.open_page("build")
    field = at.selectbox(key=f"build-model-{second.source}")
    assert param(at, "model") == field.value == second.source and field.help.endswith(f"Chosen: `{second.source}`")
    assert field.options[:3] == ["two", "one", "starter"] and not any("/two" in option for option in field.options)
    document = simulated.evaluation(["one"], [1.0])
    variant = document.variants[0].variant.model_copy(update={"source": first.source})
    results = [document.variants[0].model_copy(update={"variant": variant})]
    studio.evaluation(studio_home, document.model_copy(update={"variants": results}))
    assert param(studio.open_page("build"), "model") == first.source
    assert param(studio.open_page("train"), "model") == first.source


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
    at = click(studio.open_page("build"), f"build_goal-{goal}")
    assert built(at).step(technique)
    assert not at.error


def test_steps_are_added_where_they_run_removed_and_taken_back(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe="name: mine\nsteps:\n- speculate: {method: ngram}\n")
    at.session_state[recipe_form.MENU] = True
    add = next(button for button in at.button if button.label == "Quantize to 8 bits (w8a8)")
    click(at, str(add.key))
    assert [step.technique for step in built(at).steps] == ["quantize", "speculate"]
    assert not at.session_state[recipe_form.MENU], "the menu closes, so that the step is seen"
    labelled(at, "Remove", 1)
    assert [step.technique for step in built(at).steps] == ["quantize"]
    for _ in range(2):
        labelled(at, "Undo")
    assert [step.technique for step in built(at).steps] == ["speculate"]


def test_a_choice_that_does_not_fit_is_greyed_with_its_reason(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe=W8A8)
    awq = next(button for button in at.button if button.label == "Quantize to 4 bits (awq)")
    assert awq.disabled
    assert "2 times" in studio.says(at)


def test_an_option_is_edited_and_what_goes_with_another_method_goes(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe="name: four\nsteps:\n- quantize: {method: awq, group_size: 32}\n")
    method = next(box for box in at.selectbox if box.label == "Method")
    method.set_value("w8a8").run()
    studio.check(at)
    assert built(at).steps == read({"steps": [{"quantize": {"method": "w8a8"}}]}).steps
    assert "Group size" not in [box.label for box in at.selectbox]


def test_numbers_and_names_are_written_back(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe="name: n\nsteps:\n- speculate: {method: ngram, tokens: 4}\n")
    next(box for box in at.number_input if box.label == "Draft tokens").set_value(7).run()
    next(box for box in at.text_input if box.label == "Recipe name").set_value("<b>mine</b>").run()
    studio.check(at)
    assert built(at).name == "<b>mine</b>"
    assert built(at).steps[0].tokens == 7  # type: ignore[union-attr]


def test_a_schedule_and_its_tokens_are_drawn_together(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe="name: n\nsteps:\n- speculate: {method: ngram, tokens: 6}\n")
    next(box for box in at.text_input if box.label == "Tokens by load").set_value("1: 4, 8: 0").run()
    studio.check(at)
    assert next(box for box in at.number_input if box.label == "Draft tokens").value == 4
    next(box for box in at.number_input if box.label == "Draft tokens").set_value(2).run()
    assert next(box for box in at.text_input if box.label == "Tokens by load").value == "1: 2, 8: 0"


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
    click(at, "build_nearest")
    assert len(built(at).steps) == 1
    assert not at.button(key="build_optimize").disabled


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nsteps:\n\t- quantize: {}\n", "indent with spaces"),
        ("name: x\nstep: []\n", "`step` of the recipe is unknown"),
        ("name: x\nsteps:\n- melt: {}\n", "`melt` is unknown"),
        ("- 1\n", "must be a mapping"),
        ("name: [\n", "not valid YAML"),
        ("a: &a [x, x]\nname: *a\n", "no anchors"),
        ("name: x\nname: y\n", "appears twice"),
        ("", "must be a mapping"),
        ("name: :red[x] <b>\nsteps: {<i>: 1}\n", "`steps` of the recipe is wrong"),
    ],
)
def test_broken_yaml_is_one_sentence_and_stays_in_the_field(studio_home: Workspace, text: str, says: str) -> None:
    at = paste(studio.open_page("build", recipe=W8A8), text)
    assert says in at.error[0].value
    assert at.text_area[0].value == text
    assert built(at).name == "mine"


def test_a_text_of_megabytes_is_not_taken_and_the_recipe_stays(studio_home: Workspace) -> None:
    at = paste(studio.open_page("build", recipe=W8A8), "x" * 10_000_000)
    assert "At most 100 kB" in studio.says(at)
    assert len(at.error) == 1 and built(at).name == "mine"


def test_pasted_yaml_becomes_cards(studio_home: Workspace) -> None:
    at = paste(studio.open_page("build"), "name: pasted\nsteps:\n- speculate: {method: ngram, tokens: 6}\n")
    assert "1. Speculate with n-grams" in studio.says(at)
    assert built(at).name == "pasted"


def test_a_broken_recipe_in_the_url_can_be_mended_in_place(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe="name: x\nsteps: 7\n")
    assert "Correct it below" in at.error[0].value
    assert at.text_area[0].value == "name: x\nsteps: 7\n"
    assert at.button(key="build_optimize").disabled
    assert built(paste(at, W8A8)).name == "mine"


@pytest.mark.parametrize("model", ["nowhere", "<script>alert(1)</script>", "/no/such/folder", "../../etc"])
def test_an_unknown_model_is_one_sentence_and_keeps_the_recipe(studio_home: Workspace, model: str) -> None:
    at = studio.open_page("build", model=model, recipe=W8A8)
    assert "There is no" in at.error[0].value or "is not a model folder" in at.error[0].value
    assert param(at, "recipe") == W8A8


def test_the_recipe_survives_a_walk_to_another_page(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe=W8A8)
    at.switch_page("../pages/jobs.py").run()
    at.query_params.clear()
    at.switch_page("../pages/build.py").run()
    studio.check(at)
    assert built(at).name == "mine"


def test_the_address_alone_brings_the_recipe_back_after_a_refresh(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe=W8A8)
    labelled(at, "Speculate with n-grams")
    again = studio.open_page("build", model=param(at, "model"), recipe=param(at, "recipe"))
    assert built(again) == built(at)
    assert [step.technique for step in built(again).steps] == ["quantize", "speculate"]


def test_two_tabs_build_two_recipes(studio_home: Workspace) -> None:
    one, other = studio.open_page("build", recipe=W8A8), studio.open_page("build")
    labelled(other, "Speculate with n-grams")
    labelled(one, "Compile ahead of time")
    other.run()
    assert [step.technique for step in built(other).steps] == ["speculate"]
    assert [step.technique for step in built(one).steps] == ["quantize", "compile"]


def test_back_in_the_middle_shows_the_recipe_of_that_address(studio_home: Workspace) -> None:
    at = studio.open_page("build", recipe=W8A8)
    before = param(at, "recipe")
    labelled(at, "Speculate with n-grams")
    at.query_params["recipe"] = before
    studio.step_back(at)
    assert [step.technique for step in built(at).steps] == ["quantize"]
    assert "2. " not in studio.says(at)


def test_a_long_recipe_is_packed_into_the_address(studio_home: Workspace) -> None:
    long = f"name: long\nsteps:\n- quantize: {{method: w8a8, calibration: /{'very-long-' * 900}}}\n"
    address = url_parameters.write_recipe(long)
    assert address is not None and len(address) < url_parameters.LONGEST < len(long)
    at = studio.open_page("build", recipe=address)
    assert at.text_area[0].value.startswith("name: long")
    assert param(at, "recipe").startswith(url_parameters.MARK)
    assert url_parameters.write_recipe(W8A8) == W8A8


@pytest.mark.parametrize("address", ["z:", "z:%%%", "z:eJw=", "z:" + "A" * 5000, "z:é", url_parameters.MARK + BOMB])
def test_a_damaged_packed_address_is_one_sentence(studio_home: Workspace, address: str) -> None:
    at = studio.open_page("build", recipe=address)
    assert len(at.error) == 1 and "in the address" in at.error[0].value
    assert at.button(key="build_optimize").disabled


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
    click(at, "build_optimize")
    assert at.title[0].value == "Optimize starter with w8a8"
    at.switch_page("../pages/build.py").run()
    assert len(jobs.listing(studio_home)) == 1 and "Open the job" in studio.links(at)
    click(at, "build_again")
    click(at, "build_optimize")
    assert len(jobs.listing(studio_home)) == 2


def test_the_same_key_is_one_job_whoever_clicks(studio_home: Workspace) -> None:
    prepared = homes.prepare(studio_home, "starter", recipe_files.read_file(Path("w8a8")))
    first, second = (optimize.submit(studio_home, prepared, submission="optimize-1") for _ in range(2))
    assert first.id == second.id


def test_a_missing_engine_is_told_before_the_start(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="w8a8-compiled")
    assert any("install" in error.value for error in at.error)
    assert at.button(key="build_optimize").disabled


def test_every_option_of_every_step_has_words_and_a_value() -> None:
    for technique, method in (
        ("quantize", "w8a8"),
        ("quantize", "awq"),
        ("speculate", "draft"),
        ("speculate", "ngram"),
    ):
        recipe = read({"steps": [{technique: {"method": method}}]})
        for option in recipe_options.shown_options(recipe.steps[0]):
            recipe_options.value(recipe, 0, option.name)
            assert option.help.endswith(".")
    for where, shown in (("serving", SERVING_OPTIONS), ("limits", LIMIT_OPTIONS)):
        assert [option.name for option in shown] == list(type(getattr(Recipe(), where)).model_fields)


def test_a_draft_comes_and_goes_with_its_method() -> None:
    recipe = read({"steps": [{"speculate": {"method": "ngram", "tokens": 6}}]})
    drafted = recipe_options.with_setting(recipe, 0, "method", "draft")
    assert drafted.steps[0].draft == "auto"  # type: ignore[union-attr]
    assert recipe_options.with_setting(drafted, 0, "method", "ngram") == recipe
    with pytest.raises(InvalidRecipe):
        recipe_options.with_setting(recipe, 0, "tokens", 99)


def test_a_gguf_step_brings_its_engine_and_takes_it_away() -> None:
    recipe = read({"steps": [{"quantize": {"method": "awq"}}]})
    stored = recipe_options.with_setting(recipe, 0, "method", "gguf")
    assert stored.serving.engine == "llama.cpp"
    assert {"type", "imatrix"} < {option.name for option in recipe_options.shown_options(stored.steps[0])}
    assert recipe_options.with_setting(stored, 0, "method", "awq") == recipe
    assert recipe_options.without_step(stored, 0).serving.engine == "vllm"
    chosen = read({"steps": [{"quantize": {"method": "gguf"}}], "serving": {"engine": "vllm"}})
    assert chosen.serving.engine == "vllm"  # refused by the rule of serving engines


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


def test_the_chosen_engine_says_when_to_prefer_it(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe=url_parameters.write_recipe(W8A8))
    assert ENGINES["native"].prefer in studio.says(at)
    at.selectbox(key=field(at, "engine")).select("llm-compressor").run()
    studio.check(at)
    assert ENGINES["llm-compressor"].prefer in studio.says(at)
    (step,) = built(at).steps
    assert isinstance(step, Quantize) and step.engine == "llm-compressor"


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


def test_an_uploaded_calibration_text_is_kept_and_put_into_the_recipe(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe=url_parameters.write_recipe(W8A8))
    content = b'{"text": "def add(a, b):"}\n'
    at.file_uploader(key=field(at, "upload")).set_value(("mine.jsonl", content, "application/jsonl")).run()
    studio.check(at)
    (step,) = built(at).steps
    assert isinstance(step, Quantize) and Path(step.calibration).read_bytes() == content
    assert Path(step.calibration).parent == studio_home.settings.home / "calibration"


def test_a_calibration_text_that_will_not_do_is_refused_and_not_kept(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe=url_parameters.write_recipe(W8A8))
    at.file_uploader(key=field(at, "upload")).set_value(("mine.txt", b"\xff\xfe\x00", "text/plain")).run()
    studio.check(at)
    assert "mine.txt is not UTF-8 text" in studio.says(at)
    assert list((studio_home.settings.home / "calibration").iterdir()) == []
    held_out = (ASSETS / "text" / "held_out.txt").read_bytes()
    at.file_uploader(key=field(at, "upload")).set_value(("mine.txt", held_out, "text/plain")).run()
    assert "100% of the held-out text" in studio.says(at)
    (step,) = built(at).steps
    assert isinstance(step, Quantize) and step.calibration == "bundled"


def field(at: AppTest, name: str) -> str:
    """The key of a field of the first step."""
    kinds = (at.selectbox, at.file_uploader)
    return next(
        str(w.key)
        for kind in kinds
        for w in kind
        if str(w.key).startswith("build-") and str(w.key).endswith(f"-0-{name}")
    )


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
    before = {name: param(at, name) for name in at.query_params}
    next(field for field in at.number_input if field.label == "Draft tokens").set_value(2).run()
    for name in [*at.query_params]:
        del at.query_params[name]
    at.query_params.update(before)  # what the browser had when the click was made
    at.button(key="build_optimize").click().run()
    [job] = jobs.listing(studio_home)
    assert jobs.specification(studio_home, job.id)["recipe"]["steps"][0]["speculate"]["tokens"] == 2


def test_the_options_of_a_way_to_speculate_come_and_go_with_it() -> None:
    drafted = read({"steps": [{"speculate": {"method": "draft", "draft": "auto", "heterogeneous_vocab": True}}]})
    headed = recipe_options.with_setting(drafted, 0, "method", "eagle3")
    assert headed.steps[0].model_dump() == {"speculate": {"method": "eagle3"}}
    assert [option.name for option in recipe_options.shown_options(headed.steps[0])] == [
        "method",
        "draft",
        "tokens",
        "tokens_by_batch",
    ]
    looked_up = recipe_options.with_setting(drafted, 0, "method", "ngram")
    assert [option.name for option in recipe_options.shown_options(looked_up.steps[0])] == [
        "method",
        "tokens",
        "prompt_lookup_min",
        "prompt_lookup_max",
        "tokens_by_batch",
    ]
    for method in SPECULATE:
        step = recipe_options.with_setting(drafted, 0, "method", method).steps[0]
        assert step_words.step_help(step).endswith("The model checks every guess.") and step_words.step_title(
            step
        ).startswith("Speculate with")


def test_a_schedule_is_written_as_text_and_keeps_its_tokens() -> None:
    recipe = read({"steps": [{"speculate": {"method": "ngram", "tokens": 6}}]})
    scheduled = recipe_options.with_setting(recipe, 0, "tokens_by_batch", "1: 4, 8: 0")
    assert scheduled.steps[0].model_dump() == {"speculate": {"method": "ngram", "tokens_by_batch": {1: 4, 8: 0}}}
    assert recipe_options.value(scheduled, 0, "tokens_by_batch") == "1: 4, 8: 0"
    fewer = recipe_options.with_setting(scheduled, 0, "tokens", 2)
    assert recipe_options.value(fewer, 0, "tokens_by_batch") == "1: 2, 8: 0"
    assert recipe_options.with_setting(fewer, 0, "tokens_by_batch", None).steps[0].model_dump()["speculate"] == {
        "method": "ngram",
        "tokens": 2,
    }
    with pytest.raises(InvalidRecipe, match="must be a whole number"):
        recipe_options.with_setting(recipe, 0, "tokens_by_batch", "many")
