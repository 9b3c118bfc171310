"""A model of one's own in every state, and the shell that stands around them."""

from __future__ import annotations

import gc
import re
import shutil
from pathlib import Path

import pytest

from app import navigation
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from tests import simulated, studio

pytestmark = pytest.mark.without_supervisor


def test_a_page_without_a_file_is_not_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home.py").write_text("")
    monkeypatch.setattr(navigation, "PAGES", tmp_path)
    assert [entry.name for entries in navigation.existing_sections().values() for entry in entries] == ["home"]


def test_a_model_shows_its_card_techniques_and_what_was_tried(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home, JobState.SUCCEEDED)
    artifact_id = studio.artifact(studio_home, job, studio.optimize_spec(studio_home).model)
    studio.evaluation(studio_home, simulated.evaluation(names=("starter", "w8a8"), speeds=(1.0, 1.3)))
    at = studio.open_page("model", id="starter")
    text = studio.says(at)
    assert (
        re.search(r"weights; KV cache [\d.]+ kB per token, [\d.]+ MB at [\d,]+ tokens", text) and "`w8a8` gives" in text
    )
    assert artifact_id in " ".join(studio.links(at)) and artifact_id in [
        name for table in at.dataframe for name in table.value.get("Artifact", [])
    ]


def test_a_model_nothing_was_tried_on_says_what_will_stand_there(studio_home: Workspace) -> None:
    text = studio.says(studio.open_page("model", id="starter-draft"))
    assert "Optimized versions appear here" in text and "Nothing measured yet" in text


def test_a_folder_of_ones_own_has_a_page(studio_home: Workspace, tmp_path: Path, starter_draft: Path) -> None:
    folder = tmp_path / "own_model"
    shutil.copytree(starter_draft, folder)
    assert "own_model" in studio.says(studio.open_page("model", id=str(folder)))


@pytest.mark.parametrize(
    "required", ["nothing", "/nowhere/at/all", "<img src=x onerror=y>", "..", "é" * 5000, "~nobody-here/x", "a\0b"]
)
def test_an_unknown_model_is_one_sentence(studio_home: Workspace, required: str) -> None:
    at = studio.open_page("model", id=required)
    assert len(at.error) == 1 and studio.links(at) == ["Back to the catalog"]


def test_no_model_in_the_url_leads_to_the_catalog(studio_home: Workspace) -> None:
    assert studio.links(studio.open_page("model")) == ["Open the catalog"]


def test_what_pages_imported_is_left_out_of_garbage_collection(studio_home: Workspace) -> None:
    gc.unfreeze()
    studio.open_page("hardware")
    assert gc.get_freeze_count() > 50_000
    frozen = gc.get_freeze_count()
    studio.open_page("hardware")
    assert gc.get_freeze_count() <= frozen  # nothing new was imported, so nothing more is kept


def test_a_database_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whetstone.db").write_text("this is not a database " * 100)
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path))
    import streamlit as st

    st.cache_resource.clear()
    at = studio.start()
    studio.check(at)
    assert len(at.error) == 1 and "cannot be opened" in at.error[0].value
