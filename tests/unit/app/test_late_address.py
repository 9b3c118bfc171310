"""An address that a browser sends before it has the one that the studio wrote last."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from app import url_parameters
from backend.settings import CHECKOUT


def page() -> None:
    """One run of a page. `write` is what it writes, `back` whether the browser went back, `at` the page."""
    import streamlit as st
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    from app import url_parameters

    context = get_script_run_ctx()
    assert context is not None
    context.is_history_navigation = st.session_state.pop("back", False)
    here = st.session_state.get("at", "build")
    url_parameters.enter(here)
    if "write" in st.session_state:
        url_parameters.query()["recipe"] = st.session_state.pop("write")
    st.text(url_parameters.query().get("recipe", ""))
    if st.session_state.pop("interrupted", False):
        st.stop()
    url_parameters.leave()


def opened(recipe: str | None = "ngram") -> AppTest:
    at = AppTest.from_function(page)
    if recipe is not None:
        at.query_params["recipe"] = recipe
    return at.run()


def writes(at: AppTest, recipe: str) -> None:
    at.session_state["write"] = recipe
    assert at.run().text[0].value == recipe


def shows(at: AppTest, recipe: str | None, *, back: bool = False) -> str:
    """The browser sends this address."""
    if recipe is None:
        at.query_params.clear()
    else:
        at.query_params["recipe"] = recipe
    at.session_state["back"] = back
    return str(at.run().text[0].value)


def test_a_replaced_address_is_corrected_until_the_browser_has_the_new_one() -> None:
    at = opened()
    writes(at, "two")
    assert shows(at, "ngram") == "two"
    at.query_params["recipe"] = "ngram"  # no run has come with the new one yet
    writes(at, "three")
    assert shows(at, "ngram") == "three"
    assert at.query_params["recipe"] == "three"
    assert shows(at, "three") == "three"
    assert shows(at, "two") == "two", "the browser had the new one, so this one was opened"


def test_a_step_back_is_never_late() -> None:
    at = opened()
    writes(at, "two")
    assert shows(at, "ngram", back=True) == "ngram"
    assert shows(at, "two", back=True) == "two"


def test_an_address_that_was_written_again_is_not_late() -> None:
    at = opened()
    writes(at, "two")
    at.query_params["recipe"] = "ngram"
    writes(at, "ngram")  # as Undo does
    assert shows(at, "two") == "ngram"
    assert shows(at, "ngram") == "ngram"


def test_a_write_is_noted_even_if_the_next_click_ends_its_run() -> None:
    at = opened()
    at.session_state["interrupted"] = True
    writes(at, "two")
    assert shows(at, "ngram") == "two"


def test_an_address_that_another_page_links_to_is_taken() -> None:
    at = opened()
    writes(at, "two")
    at.session_state["at"] = "job"
    shows(at, "two")
    at.session_state["at"] = "build"
    assert shows(at, "ngram") == "ngram"


def test_the_bare_address_of_the_menu_is_late_for_a_moment_only() -> None:
    at = opened(None)
    writes(at, "two")
    assert shows(at, None) == "two"
    written = at.session_state[url_parameters.WRITTEN]
    at.session_state[url_parameters.WRITTEN] = written._replace(at=written.at - url_parameters.BARE_LATE_S)
    assert shows(at, None) == ""


def test_pages_read_and_write_the_address_through_one_module_alone() -> None:
    files = [*(CHECKOUT / "app").rglob("*.py"), *(CHECKOUT / "pages").rglob("*.py")]
    direct = {file.name for file in files if "st.query_params" in file.read_text()}
    assert direct == {"url_parameters.py"}
