"""Pages of one session keep apart: what is typed, chosen or built on one changes nothing on another."""

from __future__ import annotations

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app import navigation
from app.jobs import finished_toasts
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from tests import simulated, studio

PAGES = [entry.name for entries in navigation.existing_sections().values() for entry in entries]
SHARED = {navigation.HERE, finished_toasts.WATCHED}
"""Keys of the session that belong to no page."""


def keys(at: AppTest) -> set[str]:
    """Of every widget that is drawn now, as it was named."""
    return {str(node.key) for node in at._tree if getattr(node, "key", None)}


def visit(at: AppTest, name: str, **query: str) -> set[str]:
    """Go there in the same session: the keys of the page, and of what the session holds since."""
    before = set(at.session_state._state.filtered_state)
    at.switch_page(f"../pages/{name}.py")
    at.query_params.clear()
    for key, value in query.items():
        at.query_params[key] = value
    at.run()
    studio.check(at)
    return keys(at) | (set(at.session_state._state.filtered_state) - before)


@pytest.fixture
def tab_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the browser's tab, as pages give them."""
    names: list[str] = []
    monkeypatch.setattr(st, "set_page_config", lambda page_title=None, **_: names.append(page_title or ""))
    return names


@pytest.mark.without_supervisor
def test_the_tab_of_the_browser_says_the_page_and_the_state_of_a_job(
    studio_home: Workspace, tab_names: list[str]
) -> None:
    studio.evaluation(studio_home, simulated.evaluation(), "e-1")
    states = {
        "Queued: Optimize starter with w8a8": JobState.QUEUED,
        "0% Optimize starter with w8a8": JobState.RUNNING,
        "Failed: Optimize starter with w8a8": JobState.FAILED,
    }
    addresses = [
        ("home", {}, "Whetstone"),
        ("train", {}, "Train a draft · Whetstone"),
        ("model", {"id": "starter"}, "starter · Whetstone"),
        ("evaluate", {"id": "e-1"}, "Evaluate starter, w8a8 · Whetstone"),
        *(
            ("job", {"id": studio.optimize_job(studio_home, state).id}, f"{words} · Whetstone")
            for words, state in states.items()
        ),
    ]
    for page, query, name in addresses:
        studio.open_page(page, **query)
        assert tab_names[-1] == name


IN_SIDEBAR = "load_"
"""How keys of the load begin, which all pages share."""


def test_every_key_of_the_session_is_named_by_its_page(studio_home: Workspace) -> None:
    stored = studio.evaluation(studio_home, simulated.evaluation(), "e-1")
    job = studio.optimize_job(studio_home, JobState.RUNNING)
    studio.install_job(studio_home, JobState.SUCCEEDED)
    queries: dict[str, list[dict[str, str]]] = {
        "evaluate": [{}, {"variants": "starter"}, {"id": stored, "evaluate_requests_shown": "true"}],
        "compare": [{"ids": stored}, {"presets": "starter/lower-cost,starter/lower-latency"}],
        "model": [{"id": "starter"}, {"id": "meta-textgeneration-llama-3-70b"}],
        "job": [{"id": job.id}],
        "build": [{"model": "starter", "recipe": "awq"}, {"model": "starter", "target": "auto"}],
        "presets": [{}, {"selected": "starter/lower-cost"}],
    }
    at = studio.start()
    foreign = [
        (name, key)
        for name in [*PAGES, *reversed(PAGES)]
        for query in queries.get(name, [{}])
        for key in visit(at, name, **query) - SHARED
        if not key.startswith((f"{name}_", f"{name}-", IN_SIDEBAR))
    ]
    assert not foreign


@pytest.mark.parametrize("button", ["Lower cost", "Custom"])
def test_the_playground_opens_after_a_button_of_build(studio_home: Workspace, button: str) -> None:
    at = studio.open_page("build", model="starter")
    next(each for each in at.button if each.label == button).click().run()
    visit(at, "playground")
    assert at.radio[0].value == "Continue the text" and at.chat_input[0].disabled


def test_words_and_prices_stay_on_the_page_where_they_were_typed(studio_home: Workspace) -> None:
    at = studio.open_page("catalog")
    at.text_input(key="catalog_words").set_value("phi-2").run()
    for name in ("presets", "jobs", "hardware"):
        visit(at, name)
        assert at.text_input(key=f"{name}_words").value == ""
    visit(at, "build", model="starter")
    at.number_input(key="build_price").set_value(2.5).run()
    visit(at, "evaluate", variants="starter")
    assert at.number_input(key="evaluate_price").value is None
    visit(at, "catalog")
    assert at.text_input(key="catalog_words").value == "phi-2", "what was typed there is still there"
