"""A page that fails shows an id, and the error itself stands under that id in the log alone."""

from __future__ import annotations

import logging
import re
import tomllib

import pytest
from streamlit.error_util import handle_user_script_exception
from streamlit.testing.v1 import AppTest

from app.web import error_page
from backend.settings import CHECKOUT


def failing() -> None:
    """A script that handles its error as Streamlit handles that of a page."""
    from streamlit.error_util import handle_user_script_exception

    from app.web import error_page
    from backend.domain.errors import RequestError

    for error in (KeyError("/home/ann/private"), RequestError("There is no such model: choose another.")):
        handle_user_script_exception(error, error_page.show)


def test_what_nobody_foresaw_is_an_id_on_the_page_and_whole_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger=error_page.__name__):
        at = AppTest.from_function(failing).run(timeout=60)
    first, second = (each.value.replace("\\", "") for each in at.error)
    assert not at.exception and "private" not in first and second == "There is no such model: choose another."
    match = re.search(r"`([0-9a-f]{8})`", first)
    assert match is not None
    (record,) = [each for each in caplog.records if each.name == error_page.__name__]
    assert match[1] in record.getMessage() and record.exc_info is not None and "private" in str(record.exc_info[1])


def test_the_server_shows_no_details_and_has_the_handler() -> None:
    config = tomllib.loads((CHECKOUT / ".streamlit" / "config.toml").read_text())
    assert config["client"]["showErrorDetails"] == "none"
    assert "on_script_error=error_page.show" in (CHECKOUT / "app" / "web" / "studio.py").read_text()
    assert handle_user_script_exception.__code__.co_varnames[:2] == ("ex", "on_script_error")
