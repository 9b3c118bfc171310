"""Pages for people of different roles: what they may not do is disabled and says why, what others own is told."""

from __future__ import annotations

import re

import pytest
import streamlit as st

from backend.domain.roles import Actor, Role
from backend.service import Workspace
from backend.service.jobs import jobs
from tests import studio

ANN = Actor(name="ann@example.org", role=Role.OPERATOR, origin="page")


@pytest.fixture
def of_ann(studio_home: Workspace) -> str:
    return studio.install_job(studio_home.acting_as(ANN)).id


def acting(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    monkeypatch.setenv("WHETSTONE_ROLE", role)
    st.cache_resource.clear()


@pytest.mark.parametrize(
    ("role", "why"),
    [("viewer", "viewer may not move jobs to the front"), ("operator", r"This job is ann@example\.org's")],
)
def test_what_one_may_not_do_to_a_job_is_disabled_with_the_reason(
    studio_home: Workspace, of_ann: str, monkeypatch: pytest.MonkeyPatch, role: str, why: str
) -> None:
    acting(monkeypatch, role)
    at = studio.open_page("jobs")
    assert "by ann@example.org" in studio.says(at)
    at = studio.open_page("job", id=of_ann)
    (front,) = [button for button in at.button if button.label == "Move to front"]
    assert front.disabled and re.search(why, front.help.replace("\\", ""))


def test_a_viewer_finds_no_button_that_submits(studio_home: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    acting(monkeypatch, "viewer")
    at = studio.open_page("build", model="starter", recipe="w8a8")
    assert at.button(key="build_optimize").disabled
    assert "viewer may not submit" in studio.says(at)
    at = studio.open_page("hardware")
    changing = [button for button in at.button if button.label in {"Install", "Measure it", "Measure again"}]
    assert changing and all(button.disabled and "viewer may not" in button.help for button in changing)


def test_mine_only_is_offered_where_others_have_jobs(studio_home: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    own = jobs.cancel(studio_home, studio.install_job(studio_home, title="My own").id)
    assert not studio.open_page("jobs").toggle
    other = jobs.cancel(studio_home, studio.install_job(studio_home.acting_as(ANN), title="Of another").id)
    at = studio.open_page("jobs")
    assert own.id in studio.says(at) and other.id in studio.says(at)
    at.toggle(key="jobs_mine").set_value(True).run()
    studio.check(at)
    assert own.id in studio.says(at) and other.id not in studio.says(at)
