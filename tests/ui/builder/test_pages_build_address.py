"""A recipe as text and in the address of Build: read, mended, kept on the way to another page, and packed where it is
long."""

from __future__ import annotations

import base64
import zlib

import pytest
from streamlit.testing.v1 import AppTest

from app import url_parameters
from backend.service import Workspace
from tests import studio
from tests.helpers.build_page import W8A8, built, labelled

BOMB = base64.urlsafe_b64encode(zlib.compress(b"#" * 2_000_000)).decode()


def paste(at: AppTest, text: str) -> AppTest:
    at.text_area[0].set_value(text)
    return studio.click(at, "build_read-yaml")


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
    assert studio.param(at, "recipe") == W8A8


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
    again = studio.open_page("build", model=studio.param(at, "model"), recipe=studio.param(at, "recipe"))
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
    before = studio.param(at, "recipe")
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
    assert studio.param(at, "recipe").startswith(url_parameters.MARK)
    assert url_parameters.write_recipe(W8A8) == W8A8


@pytest.mark.parametrize("address", ["z:", "z:%%%", "z:eJw=", "z:" + "A" * 5000, "z:é", url_parameters.MARK + BOMB])
def test_a_damaged_packed_address_is_one_sentence(studio_home: Workspace, address: str) -> None:
    at = studio.open_page("build", recipe=address)
    assert len(at.error) == 1 and "in the address" in at.error[0].value
    assert at.button(key="build_optimize").disabled
