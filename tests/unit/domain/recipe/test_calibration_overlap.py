"""Whether a text has seen another: shares counted by hand, and what must not matter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.text import calibration_text
from backend.domain.recipe import calibration_text as overlap

WORDS = [f"word{number}" for number in range(40)]
HELD_OUT = " ".join(WORDS)


def test_the_share_is_that_of_the_runs_that_occur() -> None:
    runs = len(WORDS) - overlap.RUN + 1
    assert overlap.share(HELD_OUT, [HELD_OUT]) == 1.0
    assert overlap.share(HELD_OUT, [" ".join(WORDS[: overlap.RUN])]) == 1 / runs
    assert overlap.share(HELD_OUT, [" ".join(WORDS[: overlap.RUN - 1])]) == 0.0
    assert overlap.share(HELD_OUT, [" ".join(reversed(WORDS))]) == 0.0
    assert overlap.share("", [HELD_OUT]) == 0.0 and overlap.share(HELD_OUT, []) == 0.0


def test_spaces_and_capitals_do_not_hide_an_overlap_and_runs_do_not_cross_documents() -> None:
    assert overlap.share(HELD_OUT, [HELD_OUT.upper().replace(" ", "\n\t")]) == 1.0
    assert overlap.share(" ".join(WORDS[:20]), [" ".join(WORDS[:10]), " ".join(WORDS[10:20])]) == 0.0


@given(st.integers(0, 40), st.integers(0, 40))
def test_more_of_the_text_never_means_less_overlap(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert overlap.share(HELD_OUT, [" ".join(WORDS[:low])]) <= overlap.share(HELD_OUT, [" ".join(WORDS[:high])])


def test_the_bundled_texts_are_as_far_apart_as_they_must_be() -> None:
    share = overlap.share(calibration_text.HELD_OUT.read_text(), calibration_text.texts(None))
    assert share < overlap.MOST / 5
