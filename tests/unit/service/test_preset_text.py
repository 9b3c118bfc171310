"""Presets as a YAML file: what is written is read back, whatever stands in it, and what is wrong is one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.bundled import presets as bundled
from backend.domain.errors import InvalidPreset
from backend.domain.planner.presets import GOALS, Claim, Preset
from backend.domain.recipe.recipe import NAME_PATTERN, Limits, Quantize, Recipe, Serving, Speculate
from backend.service.presets import preset_text
from tests.properties import examples

GOOD = """presets:
- id: mine/fast
  model: starter
  goal: balanced
  target: local
  recipe:
    name: int8
    steps:
    - quantize: {method: w8a8}
"""

ODD = "\x85\u2028\u2029\ufeff:#-'\"&*!|>%@`{}[]"
words = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn")) | st.sampled_from("\x85\u2028\u2029\ufeff:#-'\"&*!|>%@`{}[]"),
    max_size=40,
)
some = words.filter(lambda text: bool(text))
names = some.filter(lambda text: re.fullmatch(NAME_PATTERN, text))
part = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
figures = st.floats(allow_nan=False, allow_infinity=False, width=32)
claims = st.builds(
    Claim,
    metric=some,
    value=figures,
    against=st.none() | figures,
    unit=some,
    statement=some,
    conditions=words,
    source=some,
    url=st.sampled_from(["", "https://example.org/a?b=c#d"]),
    cheaper_than=st.none() | st.just("ml.p4d.24xlarge"),
)
steps = st.lists(
    st.sampled_from(
        [Quantize(method="awq", group_size=64), Quantize(method="w8a8"), Speculate(method="draft", draft="auto")]
    ),
    max_size=3,
).map(tuple)
recipes = st.builds(
    Recipe,
    name=names,
    steps=steps,
    serving=st.builds(Serving, tensor_parallel=st.integers(1, 8), enforce_eager=st.booleans()),
    limits=st.builds(Limits, max_kl=st.none() | st.floats(0.001, 1)),
)
presets = st.builds(
    Preset,
    id=st.tuples(part, part).map("/".join),
    model=some,
    goal=st.sampled_from(list(GOALS)),
    target=some,
    summary=words,
    recipe=recipes,
    published=st.lists(claims, max_size=2).map(tuple),
)


@given(st.lists(presets, min_size=1, max_size=4, unique_by=lambda preset: preset.id))
@examples(150)
def test_what_is_written_is_read_back(listed: list[Preset]) -> None:
    text = preset_text.write(listed)
    assert preset_text.read(text) == listed
    assert preset_text.read(text.encode()) == listed


def test_all_bundled_presets_fit_in_one_file(tmp_path: Path) -> None:
    rows = list(bundled.load().values())
    file = tmp_path / "all.yaml"
    file.write_text(preset_text.write(rows), encoding="utf-8")
    assert preset_text.read_file(file) == rows
    assert file.stat().st_size < preset_text.MAX_BYTES / 4


def test_a_file_with_a_byte_order_mark_is_read() -> None:
    (preset,) = preset_text.read(b"\xef\xbb\xbf" + GOOD.encode())
    assert preset.recipe.step("quantize") is not None and preset.summary == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold `presets:`"),
        ("presets: []\n", "holds 0 presets"),
        ("presets: 7\n", "must hold `presets:`"),
        (GOOD + "more: 1\n", "must hold `presets:`"),
        (GOOD.replace("  model", "\tmodel"), "indent with spaces"),
        (GOOD + GOOD.partition("\n")[2], "holds the preset `mine/fast` twice"),
        (GOOD.replace("  goal: balanced\n", "  goal: balanced\n  goal: balanced\n"), "`goal` appears twice"),
        (GOOD.replace("goal: balanced", "goal: fame"), "`mine/fast`: `goal` is wrong: it must be lower-cost"),
        (GOOD.replace("  target: local\n", "  colour: red\n"), "`mine/fast`: `colour` is unknown"),
        (GOOD.replace("  model: starter\n", ""), "`mine/fast`: `model` is missing"),
        (GOOD.replace("id: mine/fast", "id: Mine"), "`id` is wrong: it must be two words"),
        (GOOD.replace("id: mine/fast", "id: 3"), "number 1: `id` is wrong"),
        (GOOD.replace("method: w8a8", "method: w9"), "`mine/fast`: `steps.0.method` of the recipe"),
        (GOOD.replace("    steps:", "    stops:"), "`stops` of the recipe is unknown"),
        (GOOD.replace("model: starter", "model: &a starter"), "no anchors"),
        (GOOD.replace("model: starter", "model: !!python/object:os.system {}"), "not valid YAML"),
        (GOOD.replace("  recipe:", "  published: [{metric: a}]\n  recipe:"), "`published.0.value` is missing"),
        ("presets:\n- 7\n", "number 1 must be a mapping"),
        ("[" * 5000, "nested too deeply|not valid YAML"),
        (b"\xff\xfe\x00", "is not text"),
        ("#" * 10_000_000, "more than 500 kB"),
        (b"#" * 10_000_000, "more than 500 kB"),
    ],
)
def test_what_is_wrong_is_one_sentence(content: str | bytes, message: str) -> None:
    with pytest.raises(InvalidPreset, match=message) as raised:
        preset_text.read(content)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600


def test_a_file_that_is_not_there_or_huge_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidPreset, match="cannot be read"):
        preset_text.read_file(tmp_path / "none.yaml")
    with pytest.raises(InvalidPreset, match="cannot be read"):
        preset_text.read_file(tmp_path)
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(10_000_000)
    with pytest.raises(InvalidPreset, match="more than 500 kB"):
        preset_text.read_file(huge)
