"""What is stored can be read back; a row that cannot be read is named, hides no other, and can be removed."""

from __future__ import annotations

import json
import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import whetstone
from backend.catalog.bundled import models as bundled
from backend.domain.errors import InvalidPreset, NotNow, WrittenByNewer
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import Event
from backend.domain.planner.presets import Claim, Preset
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace, unreadable_rows
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs, progress
from backend.service.machines import doctor
from backend.service.models import models
from backend.service.presets import preset_text, presets
from backend.store.tables import ArtifactRow, EvaluationRow, JobRow, ModelRow, PresetRow
from tests.helpers.unreadable_rows import ROWS, command
from tests.simulated import evaluation

STARTER = bundled.card("starter")
ANY = st.floats() | st.integers() | st.text(max_size=5) | st.booleans() | st.none()


@pytest.fixture
def spoilt(home: Workspace) -> Workspace:
    with home.store.session() as session:
        for row in ROWS.values():
            session.add(type(row)(**row.model_dump()))
    return home


def test_one_bad_row_hides_no_other(spoilt: Workspace) -> None:
    assert len(presets.listing(spoilt)) > 10 and "my/own" not in [known.preset.id for known in presets.listing(spoilt)]
    assert (
        artifacts.listing(spoilt) == [] and evaluations.listing(spoilt) == [] and models.list_remembered(spoilt) == []
    )
    result = unreadable_rows.find_all(spoilt)
    assert [(each.kind, each.id) for each in result] == [
        (kind, row.model_dump()["path" if kind == "model" else "id"]) for kind, row in ROWS.items()
    ]
    assert all(each.why.endswith(".") and "\n" not in each.why for each in result)


def test_each_can_be_removed(spoilt: Workspace) -> None:
    for each in unreadable_rows.find_all(spoilt):
        unreadable_rows.remove(spoilt, each)
    assert unreadable_rows.find_all(spoilt) == []


def test_the_commands_of_a_bad_preset_answer_in_sentences(
    spoilt: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(spoilt, monkeypatch, "presets", "show", "my/own") == 2
    assert "`whetstone presets remove my/own` takes it out" in capsys.readouterr().err
    assert command(spoilt, monkeypatch, "presets", "remove", "my/own") == 0
    assert command(spoilt, monkeypatch, "artifacts", "delete", "a-1") == 0
    capsys.readouterr()
    command(spoilt, monkeypatch, "doctor", "--json")
    findings = [finding for finding in json.loads(capsys.readouterr().out) if finding["subject"].startswith("Stored")]
    assert [finding["subject"] for finding in findings] == ["Stored evaluation e-1", "Stored model /models/x"]
    command(spoilt, monkeypatch, "doctor", "--remove-damaged")
    assert unreadable_rows.find_all(spoilt) == []


@given(value=ANY, against=ANY, statement=st.text(max_size=20), conditions=st.text(max_size=20))
def test_a_preset_that_is_taken_can_be_read_back(
    value: object, against: object, statement: str, conditions: str
) -> None:
    claim = {
        "metric": "m",
        "value": value,
        "against": against,
        "unit": "u",
        "statement": statement,
        "conditions": conditions,
        "source": "s",
    }
    entry = {
        "id": "a/b",
        "model": "starter",
        "goal": "balanced",
        "recipe": {"name": "x", "steps": []},
        "published": [claim],
    }
    text = json.dumps({"presets": [entry]})  # JSON with NaN in it is what YAML reads too
    for written in (text, text.replace("NaN", ".nan").replace("Infinity", ".inf")):
        try:
            (result,) = preset_text.read(written)
        except InvalidPreset as error:
            assert "\n" not in str(error)
            continue
        assert Preset.model_validate_json(result.model_dump_json()) == result
        assert preset_text.read(preset_text.write([result])) == [result]


@given(
    st.recursive(
        ANY, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    )
)
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


def newer_rows() -> dict[unreadable_rows.DocumentKind, PresetRow | ArtifactRow | EvaluationRow | ModelRow]:
    """Rows as the next version may write them: the same schema of the database, one field more in the document."""
    preset = Preset.model_validate(
        {"id": "my/own", "model": "starter", "goal": "balanced", "recipe": {"name": "x", "steps": []}}
    )
    manifest = Manifest(
        job="j-1", parent=STARTER, recipe=preset.recipe, recipe_hash="0", files=[], bytes_before=1, bytes_after=1
    )
    documents: dict[unreadable_rows.DocumentKind, BaseModel] = {
        "preset": preset,
        "artifact": manifest,
        "evaluation": evaluation(),
        "model": STARTER,
    }
    columns = {"preset": "document", "artifact": "manifest", "evaluation": "document", "model": "card"}
    rows = {}
    for kind, document in documents.items():
        text = json.dumps(document.model_dump(mode="json") | {"of_the_next_version": 1})
        row = ROWS[kind]
        rows[kind] = type(row)(**row.model_dump() | {columns[kind]: text})
    return rows


@pytest.fixture
def newer(home: Workspace) -> Workspace:
    with home.store.session() as session:
        session.add_all(newer_rows().values())
    return home


def test_what_a_newer_version_wrote_is_called_so_and_never_removed(
    newer: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = unreadable_rows.find_all(newer)
    assert [row.kind for row in rows] == list(ROWS) and all(row.newer for row in rows)
    assert all(
        "was written by a newer version of Whetstone" in row.why and "`of_the_next_version`" in row.why for row in rows
    )
    command(newer, monkeypatch, "doctor", "--remove-damaged", "--json")
    findings = [each for each in json.loads(capsys.readouterr().out) if each["subject"].startswith("Stored")]
    assert [each["fix"] for each in findings] == [doctor.NEWER] * 4
    assert unreadable_rows.find_all(newer) == rows
    for row in rows:
        with pytest.raises(NotNow, match="is not damaged"):
            unreadable_rows.remove(newer, row)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("artifacts", "list"), "artifact a-1"),
        (("presets", "list"), "preset my/own"),
        (("models", "list"), "model /models/x"),
    ],
)
def test_a_list_names_what_a_newer_version_wrote(
    arguments: tuple[str, ...],
    name: str,
    newer: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(newer, monkeypatch, *arguments) == 0
    output = capsys.readouterr()
    assert f"Not in this list: {name}." in output.err and "newer version of Whetstone" in output.err
    assert "No artifacts yet" not in output.out


def test_one_artifact_of_a_newer_version_is_refused_in_a_sentence(
    newer: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("artifacts", "show", "a-1"), ("presets", "show", "my/own")):
        assert command(newer, monkeypatch, *arguments) == 2
        assert "was written by a newer version of Whetstone" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="artifact a-1"):
        assert whetstone.open(newer.settings.home).artifacts() == []


def test_a_job_of_a_newer_version_is_refused_in_a_sentence_and_spoils_no_estimate(home: Workspace) -> None:
    spec = {"kind": "optimize", "of_the_next_version": 1}
    with home.store.session() as session:
        for number in (1, 2):
            state = "failed" if number == 1 else "succeeded"
            row = JobRow(
                id=f"j-{number}", kind="optimize", state=state, title=str(number), owner="me", spec=json.dumps(spec)
            )
            session.add(row)
    with pytest.raises(WrittenByNewer, match="Job j-1 was written by a newer version"):
        jobs.retry(home, "j-1")
    assert progress.expected_time(home, "optimize", "another") is None


@given(
    st.sampled_from(list(ROWS)),
    st.sets(st.text(string.ascii_lowercase, min_size=9, max_size=12), min_size=1, max_size=3),
)
def test_a_document_with_any_field_more_is_of_a_newer_version(
    kind: unreadable_rows.DocumentKind, names: set[str]
) -> None:
    row = newer_rows()[kind]
    text = next(value for name, value in row.model_dump().items() if name in {"document", "manifest", "card"})
    document = json.loads(text)
    del document["of_the_next_version"]
    _, _, read = unreadable_rows._KINDS[kind]
    read(json.dumps(document))
    with pytest.raises(WrittenByNewer):
        read(json.dumps(document | dict.fromkeys(names, 0)))
