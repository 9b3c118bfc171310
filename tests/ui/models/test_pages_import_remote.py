"""Import from a hub: the card before the download, the licence asked for, one job, one sentence where it fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend.domain.errors import NotAllowed
from backend.domain.jobs.jobs import JobKind
from backend.domain.roles import Actor, Role
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.models import imports
from tests import studio
from tests.fakes.running import running
from tests.hubs import FakeHub
from tests.tiny import tiny_llama

ID = "org/tiny"


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(tiny_llama(tmp_path_factory.mktemp("model") / "tiny"), root / ID)
    with running("hub.py", "--root", root) as url:
        yield FakeHub(url, root)


@pytest.fixture
def hub(running_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    st.cache_data.clear()
    return running_hub.reset(ID, monkeypatch)


def open_and_read(source: str) -> AppTest:
    """The page as a link leads to it, and the click that asks for the card, where it is one of a model elsewhere."""
    at = studio.open_page("import", import_folder=source)
    for button in [each for each in at.button if each.key == "import_ask"]:
        button.click().run()
    studio.check(at)
    return at


def test_a_hub_id_shows_its_card_and_imports_as_one_job(studio_home: Workspace, hub: FakeHub) -> None:
    at = open_and_read(ID)
    text = studio.says(at)
    assert "Download" in text and "apache-2.0" in text
    assert not at.button(key="import_submit").disabled
    at.button(key="import_submit").click().run()
    assert [job.kind for job in jobs.active(studio_home)] == [JobKind.IMPORT]


def test_the_name_that_a_person_gives_goes_into_the_job(studio_home: Workspace, hub: FakeHub) -> None:
    at = open_and_read(ID)
    at.text_input(key=f"import_name-{ID}").input("my-tiny")
    at.button(key="import_submit").click().run()
    (job,) = jobs.active(studio_home)
    assert jobs.specification(studio_home, job.id)["name"] == "my-tiny" and job.title == "Import my-tiny"


def test_a_licence_with_conditions_must_be_accepted_first(studio_home: Workspace, hub: FakeHub) -> None:
    hub.settings(ID, licence="llama3", gated=False)
    at = open_and_read(ID)
    assert at.button(key="import_submit").disabled
    at.checkbox[0].check().run()
    studio.check(at)
    at.button(key="import_submit").click().run()
    (job,) = jobs.active(studio_home)
    assert jobs.specification(studio_home, job.id)["accepted"]


@pytest.mark.parametrize("source", ["org/nothing", "org/<b>x", "s3://no such bucket/x"])
def test_a_model_that_is_not_there_is_one_sentence(
    studio_home: Workspace, hub: FakeHub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    at = open_and_read(source)
    assert len(at.error) == 1
    assert jobs.active(studio_home) == []


def test_a_link_alone_asks_nobody(studio_home: Workspace, hub: FakeHub) -> None:
    """Somebody else may have written the address; what a person types is read at once."""
    at = studio.open_page("import", import_folder=ID)
    assert not hub.served("/api") and "is not read yet" in studio.says(at) and at.button(key="import_submit").disabled
    at = studio.open_page("import")
    at.text_input(key="import_folder").input(ID).run()
    assert hub.served("/api") and "Download" in studio.says(at)


def test_whoever_may_not_import_causes_no_look_up(
    studio_home: Workspace, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHETSTONE_ROLE", "viewer")
    st.cache_resource.clear()
    at = studio.open_page("import", import_folder=ID)
    at.text_input(key="import_folder").input("org/other").run()
    assert "The role viewer may not import models" in studio.says(at) and at.button(key="import_submit").disabled
    with pytest.raises(NotAllowed, match="may not import models"):
        imports.inspect(studio_home.acting_as(Actor(name="vera", role=Role.VIEWER)), ID)
    assert not hub.served("/api")
