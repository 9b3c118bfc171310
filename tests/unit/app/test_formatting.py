"""A person's words on a screen: nothing of them is left to Markdown, and nothing of them is lost."""

from __future__ import annotations

import re
import string
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formatting import cell, document_time, local_time, message, plain, shorten
from app.navigation import join_values, split_values
from backend.domain.figures import code
from backend.settings import CHECKOUT

JOINER = "\u2060"
SPECIAL = "\\`*_{}[]()#+!|<>~$:&"
written = st.text(st.sampled_from(string.ascii_letters + string.digits + string.punctuation + " \n\té模"))


def read(markdown: str) -> str:
    """What Markdown's escapes stand for, with the joiners taken out."""
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown).replace(JOINER, "")


@given(written)
def test_every_character_of_markup_is_escaped_and_none_is_lost(words: str) -> None:
    shown = plain(words)
    assert read(shown) == " ".join(words.split())
    for number, character in enumerate(shown):
        if character in SPECIAL and character != "\\":
            before = shown[:number]
            assert (len(before) - len(before.rstrip("\\"))) % 2 == 1, (words, shown)
    assert "\n" not in shown


@given(written)
def test_no_arrow_and_no_short_code_is_left_for_what_comes_after_markdown(words: str) -> None:
    text = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", plain(words))
    assert not re.search(r"->|<-|--|>=|<=|~=", text)
    assert not re.search(r":(?!\d{1,2}:)[\w+-]+:|:material/", text)


@pytest.mark.parametrize(
    ("words", "starts"), [("- item", "\\-"), ("=== x", "\\="), ("1. one", f"1{JOINER}"), ("12) x", "12\\)")]
)
def test_a_block_does_not_begin(words: str, starts: str) -> None:
    assert plain(words).startswith(starts)


@given(written)
def test_a_message_shows_code_where_backticks_stand_and_all_else_plainly(words: str) -> None:
    pieces = re.split(r"(?<!\\)`([^`\n]+)`", message(words))
    shown = "".join(part.replace(JOINER, "") if index % 2 else read(part) for index, part in enumerate(pieces))
    assert shown.replace("`", "") == " ".join(words.split()).replace("`", "")


def test_a_cell_shows_no_code_and_so_has_no_backticks() -> None:
    assert cell("Run `whetstone up` with `--demo`.") == "Run whetstone up with --demo."
    assert cell("a ` alone") == "a ` alone"


ESCAPED_SENTENCE = re.compile(
    r"plain\((error_sentence\(|[\w.]+\.(error|sentence|obstacle|why)\b|(why|refused|sentence_?|warning)\))"
)
"""A sentence of ours that `plain` would show with its backticks, where `message` makes code of them."""


def test_sentences_of_ours_are_messages_whose_backticks_become_code() -> None:
    assert ESCAPED_SENTENCE.search("plain(job.error)") and not ESCAPED_SENTENCE.search("plain(job.title)")
    sources = [path for folder in ("app", "pages") for path in (CHECKOUT / folder).rglob("*.py")]
    assert [path.name for path in sources if ESCAPED_SENTENCE.search(path.read_text())] == []


@given(written.filter(lambda words: words.strip() and ":material/" not in words))
def test_a_name_of_others_stays_within_its_code_span(words: str) -> None:
    name = " ".join(words.split()).replace("`", "'")
    assert code(words) == f"`{name}`"
    assert message(f"At 4 streams {code(words)} gives 1.3x") == f"At 4 streams `{name}` gives 1.3x"


def test_a_message_keeps_our_code_and_escapes_their_words() -> None:
    assert message("There is no model `<b>x</b>`: try *this*.") == r"There is no model `<b>x</b>`\: try \*this\*."
    assert message("`:material/home:`") == f"`:{JOINER}material/home:`"


def test_a_time_of_day_is_left_whole() -> None:
    assert JOINER not in plain("2026-01-02 03:04:05")


def test_long_words_are_cut() -> None:
    assert shorten("é" * 500) == "é" * 400 + "…"
    assert shorten("é") == "é"


@given(st.lists(written.map(str.strip).filter(bool)))
def test_values_with_commas_come_back_from_one_parameter(values: list[str]) -> None:
    assert split_values(join_values(*values)) == values


def test_what_a_person_writes_between_commas_is_read() -> None:
    assert split_values("a, b,,c ") == ["a", "b", "c"]


def test_a_time_is_written_one_way_whatever_it_came_as() -> None:
    """Without a browser its zone is not known: UTC, and named so."""
    value = datetime(2026, 11, 23, 14, 5, 9, tzinfo=UTC)
    for words in ("2026-11-23T14:05:09+00:00", "2026-11-23T15:05:09+01:00", "2026-11-23T14:05:09"):
        assert document_time(words) == local_time(value) == "2026-11-23 14:05:09 UTC"
    assert document_time("in May") == "in May" and document_time(None) == local_time(None) == "–"
