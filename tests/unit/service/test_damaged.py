"""What is stored can be read back; a row that cannot be read is named, hides no other, and can be removed."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.cli.main import main
from backend.domain.errors import InvalidPreset
from backend.domain.jobs.jobs import Event
from backend.domain.planner.presets import Claim, Preset
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace, damaged
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts
from backend.service.models import models
from backend.service.presets import preset_text, presets
from backend.store.tables import ArtifactRow, EvaluationRow, ModelRow, PresetRow
from tests.homes import open_home

NAN = '{"id": "my/own", "model": "starter", "goal": "balanced", "published": [{"value": NaN}]}'
ROWS = {
    "preset": PresetRow(id="my/own", model="starter", goal="balanced", origin="own", target="local", hash="0", document=NAN),
    "artifact": ArtifactRow(id="a-1", job_id="j-1", model="starter", recipe="x", recipe_hash="0", path="", bytes=1, manifest="{"),
    "evaluation": EvaluationRow(id="e-1", job_id="j-1", title="x", baseline="starter", path="", document="[]"),
    "model": ModelRow(path="/models/x", name="x", owner="me", card="{}"),
}
ANY = st.floats() | st.integers() | st.text(max_size=5) | st.booleans() | st.none()


@pytest.fixture
def home(tmp_path: Path) -> Workspace:
    return open_home(tmp_path / "home")


@pytest.fixture
def spoilt(home: Workspace) -> Workspace:
    with home.store.session() as session:
        for row in ROWS.values():
            session.add(type(row)(**row.model_dump()))
    return home


def command(home: Workspace, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))
    monkeypatch.setattr(sys, "argv", ["whetstone", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_one_bad_row_hides_no_other(spoilt: Workspace) -> None:
    assert len(presets.listing(spoilt)) > 10 and "my/own" not in [known.preset.id for known in presets.listing(spoilt)]
    assert artifacts.listing(spoilt) == [] and evaluations.listing(spoilt) == [] and models.remembered(spoilt) == []
    found = damaged.listing(spoilt)
    assert [(each.kind, each.id) for each in found] == [(kind, row.model_dump()["path" if kind == "model" else "id"])
                                                        for kind, row in ROWS.items()]  # fmt: skip
    assert all(each.why.endswith(".") and "\n" not in each.why for each in found)


def test_each_can_be_removed(spoilt: Workspace) -> None:
    for each in damaged.listing(spoilt):
        damaged.remove(spoilt, each)
    assert damaged.listing(spoilt) == []


def test_the_commands_of_a_bad_preset_answer_in_sentences(
    spoilt: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(spoilt, monkeypatch, "presets", "show", "my/own") == 2
    assert "`whetstone presets remove my/own` takes it out" in capsys.readouterr().err
    assert command(spoilt, monkeypatch, "presets", "remove", "my/own") == 0
    assert command(spoilt, monkeypatch, "artifacts", "delete", "a-1") == 0
    capsys.readouterr()
    command(spoilt, monkeypatch, "doctor", "--json")
    said = [finding for finding in json.loads(capsys.readouterr().out) if finding["subject"].startswith("Stored")]
    assert [finding["subject"] for finding in said] == ["Stored evaluation e-1", "Stored model /models/x"]
    command(spoilt, monkeypatch, "doctor", "--remove-damaged")
    assert damaged.listing(spoilt) == []


@given(value=ANY, against=ANY, statement=st.text(max_size=20), conditions=st.text(max_size=20))
def test_a_preset_that_is_taken_can_be_read_back(value: object, against: object, statement: str, conditions: str) -> None:
    claim = {"metric": "m", "value": value, "against": against, "unit": "u", "statement": statement, "conditions": conditions,
             "source": "s"}  # fmt: skip
    entry = {"id": "a/b", "model": "starter", "goal": "balanced", "recipe": {"name": "x", "steps": []}, "published": [claim]}
    text = json.dumps({"presets": [entry]})  # JSON with NaN in it is what YAML reads too
    for written in (text, text.replace("NaN", ".nan").replace("Infinity", ".inf")):
        try:
            (found,) = preset_text.read(written)
        except InvalidPreset as error:
            assert "\n" not in str(error)
            continue
        assert Preset.model_validate_json(found.model_dump_json()) == found
        assert preset_text.read(preset_text.write([found])) == [found]


@given(st.recursive(ANY, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)))
def test_the_facts_of_an_event_are_json_whatever_came_to_be_measured(value: object) -> None:
    event = Event(kind="point", data={"value": value})
    try:
        text = event.model_dump_json()
    except UnicodeEncodeError:  # half a surrogate pair
        return
    assert "NaN" not in text.replace(json.dumps(str(value)), "") or isinstance(value, str | list | dict)
    assert Event.model_validate_json(text) == event


def test_a_figure_that_is_no_number_is_not_known() -> None:
    event = Event(kind="point", data={"a": math.nan, "b": [math.inf, {"c": -math.inf, "d": 1.5}]})
    assert event.data == {"a": None, "b": [None, {"c": None, "d": 1.5}]}
    with pytest.raises(ValueError, match="finite"):
        Claim(metric="m", value=math.nan, unit="u", statement="s", source="s")
    assert Recipe.model_validate({"name": "x", "steps": []}).name == "x"
