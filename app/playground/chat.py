"""The conversation of the playground: one prompt to both models, streamed answers, and the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import streamlit as st

from app import navigation
from app.answer_differences import Piece, difference_sentence, differences, markup, timing_text
from app.field_labels import error_sentence
from app.formatting import plain
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.serving import playground
from backend.service.serving.playground import Question, Timing
from backend.service.serving.serve import ServedVariant, is_address

TURNS = "playground_turns"
MOST_TURNS = 20
"""Prompts of a session that remain on the page."""
SHOWN = 80
"""Characters of a prompt in one line."""
EVERY_S = 0.05
CHAT, CONTINUE = "Chat", "Continue the text"
CHATS = {
    "Explain": "Explain to a new colleague in three sentences what a key-value cache is "
    "and why it grows with the context.",
    "Summarize": "Summarize in one sentence: The night train was cancelled because of ice on the line. "
    "Passengers were taken by bus to the next city, where hotel rooms had been booked, "
    "and go on at nine in the morning.",
    "Extract": 'Give as JSON with "name", "city" and "date": Maria Rossi moved from Turin to Lyon on 3 May 2021.',
    "Write code": "Write a Python function that returns the n-th Fibonacci number without recursion.",
}
CODE = {
    "A function": 'def read_lines(path):\n    """Return the lines of a file, without their line ends."""\n',
    "A class": "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "A loop": "import os\n\nfor name in sorted(os.listdir('.')):\n    if name.endswith('.py'):\n",
    "A test": "import unittest\n\nclass StringTest(unittest.TestCase):\n    def test_split(self):\n",
}
EXAMPLES = {CHAT: CHATS, CONTINUE: CODE}


@dataclass
class Reply:
    """One answer so far. `error` says why it ended early."""

    name: str
    text: str = ""
    timing: Timing = field(default_factory=Timing)
    error: str | None = None
    complete: bool = False


@dataclass
class Turn:
    question: Question
    replies: list[Reply]


def history() -> list[Turn]:
    """Return the prompts of this session, newest first."""
    turns: list[Turn] = st.session_state.setdefault(TURNS, [])
    return turns


def _mode(talks: bool) -> str:
    """Draw the mode of the prompt. An unchanged example of the other mode is replaced by one of this mode."""
    # Begin with what the models are made for.
    modes = list(EXAMPLES)
    chosen = st.radio(
        "Ask as",
        modes,
        index=int(not talks),
        horizontal=True,
        key=f"playground_mode-{talks}",
        label_visibility="collapsed",
        help="Chat puts the model's own template around the prompt; without one the model continues the text.",
    )
    # Replace the example of the other mode, but nothing that was typed.
    mode = chosen or modes[not talks]
    other = EXAMPLES[modes[mode == CHAT]]
    if st.session_state.get("playground_prompt") in {None, *other.values()}:
        st.session_state["playground_prompt"] = next(iter(EXAMPLES[mode].values()))
    return mode


def draw_form(opened: Workspace, *, able: bool, alone: bool, talks: bool) -> Question | None:
    """Draw the prompt and its settings. Return the question if it was just sent. `talks`: the models have a chat
    template."""
    # The mode, with examples for it.
    with st.container(horizontal=True, vertical_alignment="center"):
        mode = _mode(talks)
        st.caption("Examples")
        for label, text in EXAMPLES[mode].items():
            st.button(
                label,
                key=f"playground_example-{label}",
                type="tertiary",
                icon=":material/code:",
                on_click=_use_example,
                args=(text,),
            )
    # The prompt.
    prompt = st.text_area(
        "Prompt",
        height=140,
        key="playground_prompt",
        persist_state="session",
        help="The models answer this in a talk."
        if mode == CHAT
        else "The models continue this text. The starter writes Python.",
    )
    # How it is answered, and the button.
    with st.container(horizontal=True, vertical_alignment="bottom"):
        max_tokens = st.number_input("Longest answer (tokens)", 1, 32768, 128, key="playground_tokens", width=190)
        temperature = st.number_input(
            "Temperature",
            0.0,
            2.0,
            0.0,
            0.1,
            key="playground_temperature",
            width=160,
            help="0: always the likeliest token. Above 0: the answer is sampled.",
        )
        seed = st.number_input(
            "Seed", 0, 2**31 - 1, 0, key="playground_seed", width=160, help="For temperatures above 0."
        )
        options = {"disabled": not able or not prompt, **disabled_unless_allowed(opened, Action.ASK)}
        clicked = st.button(
            "Ask" if alone else "Ask both",
            type="primary" if able else "secondary",
            icon=":material/send:",
            key="playground_ask",
            shortcut="Ctrl+Enter",
            **options,
        )
    return Question(prompt or "", int(max_tokens), float(temperature), int(seed), mode == CHAT) if clicked else None


def _use_example(text: str) -> None:
    st.session_state["playground_prompt"] = text


def ask(opened: Workspace, served: Sequence[ServedVariant], names: Sequence[str], question: Question) -> None:
    """Stream the answers one after the other, so that neither slows the other, and store them."""
    turn = Turn(question, [Reply(name) for name in names])
    talks = [earlier_messages(history(), number, names) for number in range(len(names))]
    history().insert(0, turn)
    del history()[MOST_TURNS:]
    st.button("Stop", icon=":material/stop_circle:", key="playground_stop", help="The answer so far remains.")
    for reply, server, place, talk in zip(turn.replies, served, _painters(turn), talks, strict=True):
        _stream(opened, reply, server, question, place, talk)
    st.rerun()


def earlier_messages(turns: Sequence[Turn], number: int, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the earlier questions and answers of the `number`-th model in this chat, oldest first.

    A chat is an unbroken series of chat questions to the same models.
    """
    messages: list[tuple[str, str]] = []
    for turn in turns:
        if not turn.question.chat or [reply.name for reply in turn.replies] != list(names):
            break
        if turn.replies[number].text:
            messages.insert(0, (turn.question.prompt, turn.replies[number].text))
    return messages


def _painters(turn: Turn) -> list[Callable[[Reply], None]]:
    """Draw a column per answer. Return a function for each that redraws it."""
    places = []
    for column, reply in zip(st.columns(len(turn.replies)), turn.replies, strict=True):
        with column:
            st.markdown(_heading(reply.name))
            line = st.empty()
            text = st.container(border=True).empty()
        line.caption("Waiting for its turn")
        places.append(_painter(line, text))
    return places


def _painter(
    line: st.delta_generator.DeltaGenerator, text: st.delta_generator.DeltaGenerator
) -> Callable[[Reply], None]:
    def paint(reply: Reply) -> None:
        line.caption(timing_text(reply.timing))
        text.html(markup([Piece(reply.text, False)]))

    return paint


def _stream(
    opened: Workspace,
    reply: Reply,
    server: ServedVariant,
    question: Question,
    paint: Callable[[Reply], None],
    talk: Sequence[tuple[str, str]],
) -> None:
    """Fill the reply and redraw it at most twenty times per second."""
    # Add each piece of text, and redraw now and then.
    painted = 0.0
    try:
        model = playground.find_model_name(opened, server.url, server.served_name)
        for piece in playground.stream(server.url, model, question, reply.timing, talk):
            reply.text += piece
            if time.monotonic() - painted > EVERY_S:
                paint(reply)
                painted = time.monotonic()
    except WhetstoneError as error:
        reply.error = error_sentence(error)
    # The last redraw shows the whole answer or its error.
    reply.complete = True
    paint(reply)


def show_turns(sources: Sequence[str]) -> None:
    """Show the latest answers in full and the earlier ones folded. `sources` can be measured next."""
    # 1. The latest answers.
    turns = history()
    if not turns:
        return
    st.subheader("Answers")
    _show_turn(turns[0])
    st.caption("Times are of one answer, seen from this page, and are no measurement. To compare speed, evaluate.")
    # 2. What to do next.
    with st.container(horizontal=True, vertical_alignment="center"):
        if sources:
            navigation.link(
                "evaluate", "Measure speed and quality", ":material/speed:", variants=navigation.join_values(*sources)
            )
        st.button(
            "New chat",
            icon=":material/add_comment:",
            key="playground_forget",
            type="tertiary",
            on_click=turns.clear,
            help="Clears the conversation: the next question starts a new one.",
        )
    # 3. Earlier answers, folded.
    if len(turns) > 1:
        st.subheader("History")
        for turn in turns[1:]:
            with st.expander(plain(turn.question.prompt.strip()[:SHOWN] or "White space")):
                st.code(turn.question.prompt, language=None, wrap_lines=True)
                _show_turn(turn)


def _show_turn(turn: Turn) -> None:
    """Show the answers beside each other; differences are marked once both are complete."""
    # Mark the differences once both answers are complete.
    question = turn.question
    if len(turn.replies) == 2 and all(reply.complete and not reply.error for reply in turn.replies):
        first, second = (reply.text for reply in turn.replies)
        sides = [*differences(first, second)]
        by_chance = "" if question.temperature == 0 else " Above temperature 0 they differ by chance too."
        st.markdown(difference_sentence(first, second) + by_chance)
    else:
        sides = [[Piece(reply.text, False)] for reply in turn.replies]
    # Say what was asked.
    drawn = f"temperature {question.temperature:g}" + (f", seed {question.seed}" if question.temperature else "")
    prompt = plain(question.prompt.strip()[:SHOWN])
    st.caption(f"Asked: {prompt or 'white space'} · at most {question.max_tokens:,} tokens · {drawn}")
    # One column for each answer.
    for column, reply, pieces in zip(st.columns(len(turn.replies)), turn.replies, sides, strict=True):
        with column:
            _show_reply(reply, pieces)


def _heading(name: str) -> str:
    """Return a name in bold; an address as code, or Markdown would make it a link."""
    return f"`{name.replace('`', '')}`" if is_address(name) else f"**{plain(name)}**"


def _show_reply(reply: Reply, pieces: Sequence[Piece]) -> None:
    st.markdown(_heading(reply.name))
    if reply.text or not reply.error:
        st.caption(timing_text(reply.timing))
    if reply.text:
        st.container(border=True).html(markup(pieces))
    if reply.error:
        st.error(plain(reply.error), icon=":material/error:")
    elif not reply.complete:
        st.caption(":material/stop_circle: Stopped before its end.")
    elif not reply.text:
        st.info("The answer is empty: the model ended at once.", icon=":material/info:")
