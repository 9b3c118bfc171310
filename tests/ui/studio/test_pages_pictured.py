"""The pictures of README and docs show this version's pages: drawn again without a browser, the same words stand
there."""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.text_format import MessageToString
from streamlit.testing.v1 import AppTest

from app import navigation
from backend.domain.what_if.costs import WhatIf
from backend.service.evaluations import reports
from backend.service.studio import demo_export
from backend.settings import CHECKOUT
from tests import pictures, studio
from tests.pictures import EVALUATION, PICTURES, RENEW, REPORT

MENTION = re.compile(r"!\[[^]]*\]\((?:docs/)?screenshots/([\w-]+)\.png\)")
FIELD = re.compile(r'^ *\w+: "(.*)"$', re.MULTILINE)
"""A field of a message that Streamlit sends to the browser, as protobuf writes it down."""


def plain(text: str) -> str:
    """Letters and digits alone: neither markup nor how a message was written down."""
    return re.sub(r"\W+", " ", re.sub(r":\w+/\w+:|\\", "", text)).strip()


def written(at: AppTest) -> set[str]:
    """Every text that the page draws, of buttons, tabs and fields too, and of the menu."""
    texts = [entry.title for entries in navigation.existing_sections().values() for entry in entries]
    nodes: list[Any] = [at._tree]
    while nodes:
        node = nodes.pop()
        nodes += getattr(node, "children", {}).values()
        proto = getattr(node, "proto", None)
        if proto is not None:
            texts += FIELD.findall(MessageToString(proto, as_utf8=True))
    return {plain(text) for text in texts}


def test_the_pictures_are_of_this_version_and_are_those_that_were_taken() -> None:
    manifest = pictures.read_manifest()
    assert manifest["version"] == pictures.version(), RENEW
    assert set(manifest["pictures"]) == {*PICTURES, REPORT} == {file.stem for file in pictures.FOLDER.glob("*.png")}
    for name, picture in manifest["pictures"].items():
        digest = hashlib.sha256((pictures.FOLDER / f"{name}.png").read_bytes()).hexdigest()
        assert digest == picture["sha256"], f"{name}.png was changed without its words: {RENEW}"


def test_readme_and_docs_show_pictures_that_are_there() -> None:
    shown = {
        name for file in ("README.md", "docs/screens.md") for name in MENTION.findall((CHECKOUT / file).read_text())
    }
    assert shown == {*PICTURES, REPORT}


@pytest.mark.parametrize("name", PICTURES)
def test_the_words_of_a_picture_are_still_on_its_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = PICTURES[name]
    if picture.recorded:
        demo_export.seed(tmp_path / "home")
    with studio.home(tmp_path / "home", monkeypatch):
        drawn = written(studio.open_page(picture.page, **picture.query))
    removed = [words for words in pictures.read_manifest()["pictures"][name]["words"] if plain(words) not in drawn]
    assert not removed, f"{name}.png shows what is no longer there: {RENEW}"


def test_the_words_of_the_picture_of_a_report_are_still_in_it(tmp_path: Path) -> None:
    report = reports.write_page(demo_export.seed(tmp_path / "home"), EVALUATION, WhatIf()).decode()
    drawn = plain(html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<script.*?</script>", "", report, flags=re.DOTALL))))
    removed = [words for words in pictures.read_manifest()["pictures"][REPORT]["words"] if plain(words) not in drawn]
    assert not removed, f"{REPORT}.png shows what is no longer there: {RENEW}"
