"""Two endpoints, one prompt: both answers as they arrive, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import streamlit as st

from app.words import seconds
from backend.domain.errors import WhetstoneError
from backend.domain.wording import figure
from backend.service import playground
from backend.service.playground import Timing

TITLES = ("Original", "Optimized")
DEFAULT = "def fibonacci(n):\n"


def same_words(first: str, second: str) -> int:
    """How many words two answers have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first.split(), second.split(), strict=False)))


def difference(first: str, second: str) -> str:
    """Where two answers part, in words."""
    if first == second:
        return "Both answers are the same, character by character."
    same = same_words(first, second)
    if same == len(first.split()) == len(second.split()):
        return "Both answers have the same words and differ in spaces or line breaks."
    return f"The answers have their first {same} words in common, of {len(first.split())} and {len(second.split())}."


def speed(timing: Timing) -> str:
    """One answer's own time, which is no measurement."""
    first = "first token unknown" if timing.first_s is None else f"first token after {timing.first_s * 1000:.0f} ms"
    rate = "tokens/s unknown" if timing.tokens_per_s is None else f"{figure(timing.tokens_per_s)} tokens/s"
    return f"{first}, {rate}, {seconds(timing.total_s)} in all. One answer, seen from this page: to compare speed, evaluate."


def addresses() -> list[str]:
    """One or two endpoints, kept in the URL."""
    columns = st.columns(2)
    found = []
    for index, (column, title) in enumerate(zip(columns, TITLES, strict=True)):
        found.append(
            column.text_input(
                f"{title} (URL)", "", key=f"url{index + 1}", bind="query-params", placeholder="http://HOST:PORT",
                help="An OpenAI-compatible endpoint that is running.",
            ).strip()
        )  # fmt: skip
    return found


def answer(title: str, url: str, prompt: str, max_tokens: int, temperature: float) -> str | None:
    """Stream one answer into the page; the sentence that says why not where there is none."""
    st.markdown(f"**{title}**")
    timing, pieces = Timing(), list[str]()
    try:
        with st.container(border=True):
            model = playground.models(url)[0]
            place = st.empty()
            for piece in _gather(url, model, prompt, max_tokens, temperature, timing):
                pieces.append(piece)
                place.code("".join(pieces), language=None, wrap_lines=True)
    except WhetstoneError as error:
        st.error(str(error), icon=":material/error:")
        return None
    st.caption(speed(timing))
    return "".join(pieces)


def _gather(url: str, model: str, prompt: str, max_tokens: int, temperature: float, timing: Timing) -> Iterator[str]:
    return playground.stream(url, model, prompt, max_tokens=max_tokens, temperature=temperature, timing=timing)
