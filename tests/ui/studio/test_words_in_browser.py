"""What a person wrote stands on the page as it was written, after all that Streamlit makes of Markdown in the
browser."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.homes import eventually

ROOT = Path(__file__).resolve().parents[3]
PLACES = ("text", "bold", "error", "button", "title")
MARKUP = (
    "em, strong, code, pre, img, ul, ol, table, del, h2, h3, blockquote, hr, script, .katex, "
    "[data-testid=stIconMaterial]"
)
WORDS = [
    "<script>alert(1)</script>",
    "<b>é</b> 模型 _x_",
    "**bold** *x* __y__ ~~z~~",
    "[x](javascript:y) ![i](http://y/z.png)",
    ":red[boo] :blue-background[x] :badge[x]",
    ":smile: :+1: :100:",
    ":material/home: x",
    ":streamlit:",
    "$a^2$ and $$b$$",
    "$5 and $6",
    "# head",
    "- item",
    "+ item",
    "* item",
    "1. one",
    "12) x",
    "> quote",
    "--- x",
    "---",
    "===",
    "a -> b <- c <-> d -- e >= f <= g ~= h",
    "&lt;b&gt; &amp; &#60;",
    "| a | b |",
    "a``b`c",
    "\\*esc\\*",
    "x\\",
    "[^1] [^1]: foot",
    "- [ ] task",
    "~~~",
    "___",
    "<!-- c -->",
    "/home/me/my_model*[1]/x",
    "C:\\x\\y_z_",
    "2026-01-02 03:04:05",
    "12.5 is",
]


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = str(ROOT / "tests" / "fakes" / "words_page.py")
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        script,
        "--server.port",
        str(port),
        "--server.address",
        "127.0.0.1",
    ]
    environment = {**os.environ, "WORDS": json.dumps(WORDS), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            eventually("the page of words", lambda: answers(port))
            opened = chromium.new_page()
            opened.goto(f"http://127.0.0.1:{port}")
            expect(opened.get_by_text("The end.")).to_be_visible(timeout=60_000)
            expect(opened.get_by_test_id("stSkeleton")).to_have_count(0)
            yield opened
            opened.close()
        finally:
            server.terminate()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("place", PLACES)
def test_words_are_shown_as_they_are(page: Page, place: str) -> None:
    for number, words in enumerate(WORDS):
        shown = page.locator(f".st-key-{place}-{number}").inner_text().replace("\u2060", "")
        changed = words.replace("`", "") if place == "error" else words  # in a message backticks set off code
        observed = shown.replace("`", "") if place == "error" else shown
        assert " ".join(observed.split()) == " ".join(changed.split()), (place, words)


def test_nothing_of_them_became_an_element(page: Page) -> None:
    for number, words in enumerate(WORDS):
        assert page.locator(f".st-key-text-{number}").locator(MARKUP).count() == 0, words
