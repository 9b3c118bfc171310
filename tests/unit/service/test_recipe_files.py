"""A recipe's YAML, as badly as it can be pasted: always one sentence, never a crash, never gigabytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidRecipe
from backend.domain.recipe.recipe import NAME_PATTERN
from backend.service.plans import recipe_files

NAMES = st.from_regex(NAME_PATTERN, fullmatch=True).map(lambda text: text[:80])

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 10)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nsteps:\n\t- quantize: {}\n", r"line 3, column 1: .*indent with spaces"),
        ("name: [\n", r"not valid YAML \(line 2"),
        ("x" * 100_001, "more than 100 kB"),
        (BOMB + "name: *j\n", r"line 1, column 4: no anchors"),
        (BOMB + "steps: [{technique: *j}]\n", "no anchors"),
        ("steps: *x\n", "no anchors"),
        ("name: a\nname: b\n", r"line 2, column 1: `name` appears twice"),
        ("steps:\n- quantize: {method: w8a8, method: awq}\n", "`method` appears twice"),
        ("", "must be a mapping"),
        ("   \n# nothing\n", "must be a mapping"),
        ("- 1\n", "must be a mapping"),
        ("42\n", "must be a mapping"),
        ("name: x\n---\nname: y\n", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("name: 2020-99-99\n", "not valid YAML"),
        ("name: 2020-01-01\n", "`name` of the recipe is wrong"),
        ("? [a, b]\n: 1\n", "not valid YAML"),
        ("? {a: b}\n: 1\n", "not valid YAML"),
        ("[" * 5000, "not valid YAML|nested too deeply"),
        ("a: " + "{b: " * 3000 + "1" + "}" * 3000, "nested too deeply"),
        ("steps: 7\n", "`steps` of the recipe is wrong"),
        ("steps: {quantize: {method: w8a8}}\n", "`steps` of the recipe is wrong"),
        ("steps: [quantize]\n", "steps"),
        ("steps: [{quantize: w8a8}]\n", "must be a mapping"),
        ("steps: [{quantize: {method: w8a8}, compile: {}}]\n", "one key"),
        ("steps: [{1: {}}]\n", "`1` is unknown"),
        ("steps: [{null: {}}]\n", "step"),
        ("steps: [{speculate: {method: ngram, tokens: 1e400}}]\n", "tokens"),
        ("steps: [{speculate: {method: ngram, tokens: " + "9" * 5000 + "}}]\n", "."),
        ("limits: {max_kl: .nan}\n", "max_kl"),
        ("limits: {max_kl: -1}\n", "max_kl"),
        ("serving: {max_model_len: '2048x'}\n", "max_model_len"),
        ("serving: []\n", "serving"),
        ("name: ''\n", "name"),
        ("name: " + "x" * 81 + "\n", "name"),
        ("nam\u0000e: x\n", "not valid YAML"),
        ("step: []\n", "`step` of the recipe is unknown"),
        ("<script>alert(1)</script>: 1\n", "of the recipe is unknown"),
    ],
)
def test_what_is_no_recipe_is_one_short_sentence(text: str, says: str) -> None:
    with pytest.raises(InvalidRecipe, match=says) as error:
        recipe_files.read_text(text)
    assert len(str(error.value)) < 600, str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(st.sampled_from("ab:-&*[]{}'\"|>!#%@`,? \n\t01.~<=") | st.characters(), max_size=200))
def test_any_text_is_a_recipe_or_a_sentence(text: str) -> None:
    try:
        recipe = recipe_files.read_text(text)
    except InvalidRecipe as error:
        assert str(error).endswith(".")
    else:
        assert recipe_files.read_text(recipe_files.write_text(recipe)) == recipe


@given(
    st.from_regex(NAME_PATTERN, fullmatch=True).map(lambda text: text[:80]),
    st.sampled_from(["w8a8", "awq"]),
    st.text(max_size=50),
)
def test_what_is_written_is_read_back(name: str, method: str, calibration: str) -> None:
    from backend.domain.recipe.recipe import read

    recipe = read({"name": name, "steps": [{"quantize": {"method": method, "calibration": calibration}}]})
    assert recipe_files.read_text(recipe_files.write_text(recipe)) == recipe
