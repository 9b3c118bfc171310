"""The options of a step on Build: words and values, what comes and goes with a choice, and calibration text."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import url_parameters
from app.builder import recipe_options
from app.builder.serving_options import LIMIT_OPTIONS, SERVING_OPTIONS
from backend.domain.errors import InvalidRecipe
from backend.domain.recipe import step_words
from backend.domain.recipe.quantization_engines import ENGINES
from backend.domain.recipe.recipe import Quantize, Recipe, read
from backend.domain.recipe.speculation import SPECULATE
from backend.service import Workspace
from backend.settings import ASSETS
from tests import studio
from tests.helpers.build_page import W8A8, built, field


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


def test_the_chosen_engine_says_when_to_prefer_it(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe=url_parameters.write_recipe(W8A8))
    assert ENGINES["native"].prefer in studio.says(at)
    at.selectbox(key=field(at, "engine")).select("llm-compressor").run()
    studio.check(at)
    assert ENGINES["llm-compressor"].prefer in studio.says(at)
    (step,) = built(at).steps
    assert isinstance(step, Quantize) and step.engine == "llm-compressor"


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
