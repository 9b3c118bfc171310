"""Where two answers differ: marked word by word, nothing of them lost, nothing of them taken for HTML."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import answer_differences as playground
from app.answer_differences import MAX_COMPARED, Piece, difference_sentence, differences, markup
from backend.service.serving.playground import Timing

answers = st.text() | st.lists(st.sampled_from(["self", ".", "x", " ", "\n    ", "<b>", "&amp;", "def"])).map("".join)


def marked(pieces: list[Piece]) -> list[str]:
    return [text for text, differs in pieces if differs]


@given(answers, answers)
def test_the_pieces_joined_are_the_answers(first: str, second: str) -> None:
    left, right = differences(first, second)
    assert "".join(piece.text for piece in left) == first
    assert "".join(piece.text for piece in right) == second
    assert all(piece.text for piece in left + right)


@given(answers, answers)
def test_what_is_not_marked_is_the_same_on_both_sides(first: str, second: str) -> None:
    left, right = (
        "".join(text for text, differs in side if not differs).split() for side in differences(first, second)
    )
    assert "".join(left) == "".join(right)


@given(answers)
def test_equal_answers_have_no_mark(text: str) -> None:
    assert not any(piece.differs for side in differences(text, text) for piece in side)
    assert "identical" in difference_sentence(text, text)


@given(answers, answers)
def test_the_markup_shows_the_text_and_nothing_of_it_is_a_tag(first: str, second: str) -> None:
    for text, pieces in zip((first, second), differences(first, second), strict=True):
        body = re.fullmatch(r'<pre style="[^"]*">(.*)</pre>', markup(pieces), re.DOTALL)
        assert body is not None
        inert = re.sub(r'<mark style="[^"]*">|</mark>', "", body.group(1))
        assert "<" not in inert and ">" not in inert and '"' not in inert
        assert unescape(inert) == text


def test_a_difference_is_marked_by_background_and_underline() -> None:
    left, right = differences("return a + b", "return a - b")
    assert (marked(left), marked(right)) == (["+"], ["-"])
    style = re.search(r'<mark style="([^"]*)">\+</mark>', markup(left))
    assert style is not None and "background" in style.group(1) and "underline" in style.group(1)


def test_words_that_follow_each_other_are_one_mark() -> None:
    assert marked(differences("a b c d", "a x y d")[0]) == ["b c"]


def test_white_space_alone_is_said_and_not_marked() -> None:
    assert marked(differences("a  b", "a\nb")[0]) == []
    assert "spaces or line breaks" in difference_sentence("a  b", "a\nb")


def test_the_verdict_counts_the_words() -> None:
    assert difference_sentence("a b c", "a b d e") == (
        "The first 2 words are the same; 1 of 3 words on the left and 2 of 4 on the right are marked."
    )
    assert difference_sentence("", "a").startswith("They differ from the first word on")


def test_answers_too_long_to_compare_are_marked_between_their_common_ends() -> None:
    middle, other = ("x " * (MAX_COMPARED + 1), "y x y " * MAX_COMPARED)
    left, right = differences(f"a {middle}z", f"a {other}z")
    assert [piece.text for piece in left] == ["a ", middle.strip(), " z"]
    assert [piece.differs for piece in right] == [False, True, False]


@pytest.mark.parametrize(
    ("timing", "speed", "message"),
    [
        (Timing(), "– tokens/s", "no token yet"),
        (Timing(first_s=0.1, total_s=0.1, tokens=1), "– tokens/s", "first token after 100 ms · 1 token · 0.1 s"),
        (
            Timing(first_s=0.1, total_s=1.1, tokens=51),
            "50.0 tokens/s",
            "first token after 100 ms · 51 tokens · 1.1 s",
        ),
        (Timing(first_s=0.1, total_s=75.0), "– tokens/s", "first token after 100 ms · 1 min 15 s"),
    ],
)
def test_a_speed_says_what_is_known(timing: Timing, speed: str, message: str) -> None:
    assert (playground.speed_text(timing), playground.timing_text(timing)) == (speed, message)
