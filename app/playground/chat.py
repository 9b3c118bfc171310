"""The conversation of the playground: one prompt to both models, streamed answers, and the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import streamlit as st

from app import navigation
from app.answer_differences import Piece, difference_sentence, differences, markup, speed_text, timing_text
from app.field_labels import error_sentence
from app.formatting import message, plain
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.serving import playground
from backend.service.serving.playground import Question, Timing
from backend.service.serving.serve import ServedVariant, is_address

TURNS, CHAT_NUMBER, EXAMPLE = "playground_turns", "playground_chat", "playground_example"
"""Session keys: all turns, the number of the open chat, and an example that was just chosen."""
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
    """One question with an answer of each model. `chat`: the number of the chat that it belongs to."""

    question: Question
    replies: list[Reply]
    chat: int = 0


def history() -> list[Turn]:
    """Return the prompts of this session, newest first."""
    turns: list[Turn] = st.session_state.setdefault(TURNS, [])
    return turns


def open_turns() -> list[Turn]:
    """Return the turns of the chat that the next question continues, newest first."""
    return [turn for turn in history() if turn.chat == st.session_state.get(CHAT_NUMBER, 0)]


def start_chat() -> None:
    """Begin a new chat: the next question goes to the models without the earlier ones, which remain in the history."""
    st.session_state[CHAT_NUMBER] = st.session_state.get(CHAT_NUMBER, 0) + 1


def draw_form(opened: Workspace, *, able: bool, alone: bool, talks: bool) -> Question | None:
    """Draw the prompt, which stays at the bottom of the window, and its settings. Return the question if it was just
    sent. `talks`: the models have a chat template."""
    # 1. The mode, with examples for it.
    refused = disabled_unless_allowed(opened, Action.ASK)
    with st.container(horizontal=True, vertical_alignment="center"):
        mode = _choose_mode(talks)
        settings = st.popover("Settings", icon=":material/tune:", key="playground_settings")
        st.caption("Examples")
        for label, text in EXAMPLES[mode].items():
            st.button(
                label,
                key=f"playground_example-{label}",
                type="tertiary",
                on_click=_ask_example,
                args=(text,),
                **{"disabled": not able, "help": "Asks this in a new chat.", **refused},
            )
    # 2. How it is answered.
    with settings:
        max_tokens = st.number_input("Longest answer (tokens)", 1, 32768, 128, key="playground_tokens")
        temperature = st.number_input(
            "Temperature",
            0.0,
            2.0,
            0.0,
            0.1,
            key="playground_temperature",
            help="0: always the likeliest token. Above 0: the answer is sampled.",
        )
        seed = st.number_input("Seed", 0, 2**31 - 1, 0, key="playground_seed", help="For temperatures above 0.")
    # 3. The prompt.
    prompt = st.chat_input(
        _placeholder(mode, able=able, alone=alone),
        key="playground_prompt",
        submit_mode="disable",
        disabled=not able or bool(refused),
    )
    prompt = prompt or st.session_state.pop(EXAMPLE, None)
    return Question(prompt, int(max_tokens), float(temperature), int(seed), mode == CHAT) if prompt else None


def _choose_mode(talks: bool) -> str:
    """Draw the mode of the prompt, at first what the models are made for."""
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
    return chosen or modes[not talks]


def _placeholder(mode: str, *, able: bool, alone: bool) -> str:
    """Return what the empty prompt says: what a text typed there is."""
    if not able:
        return "Start the servers first"
    if mode == CONTINUE:
        return "A text to continue"
    if open_turns():
        return "A follow-up question in this chat"
    return "A question to the model" if alone else "A question to both models"


def _ask_example(text: str) -> None:
    start_chat()
    st.session_state[EXAMPLE] = text


def ask(opened: Workspace, served: Sequence[ServedVariant], names: Sequence[str], question: Question) -> None:
    """Stream the answers one after the other, so that neither slows the other, and store them."""
    # 1. A question of another kind, or to other models, begins a chat of its own.
    if not _continues(open_turns(), names, question):
        start_chat()
    # 2. Store it at once, so that a stopped answer is not lost.
    talks = [earlier_messages(open_turns(), number, names) for number in range(len(names))]
    turn = Turn(question, [Reply(name) for name in names], st.session_state.get(CHAT_NUMBER, 0))
    history().insert(0, turn)
    del history()[MOST_TURNS:]
    # 3. Draw it and stream.
    _show_question(question)
    painters = _painters(turn)
    st.button("Stop", icon=":material/stop_circle:", key="playground_stop", help="The answer so far remains.")
    for reply, server, place, talk in zip(turn.replies, served, painters, talks, strict=True):
        _stream(opened, reply, server, question, place, talk)
    st.rerun()


def _continues(turns: Sequence[Turn], names: Sequence[str], question: Question) -> bool:
    """Tell whether a question can go on in the chat of these turns."""
    if not turns:
        return True
    return turns[0].question.chat == question.chat and [reply.name for reply in turns[0].replies] == list(names)


def earlier_messages(turns: Sequence[Turn], number: int, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the earlier questions and answers of the `number`-th model in a chat, oldest first; those of an unbroken
    series to the same models."""
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
            speed, line = st.empty(), st.empty()
            text = st.container(border=True).empty()
        _show_speed(speed, reply)
        line.caption("Waiting for its turn")
        places.append(_painter(speed, line, text))
    return places


def _show_speed(place: st.delta_generator.DeltaGenerator, reply: Reply) -> None:
    """Draw the output tokens/s of an answer in large figures."""
    place.metric("Output tokens/s", speed_text(reply.timing), label_visibility="collapsed")


def _painter(
    speed: st.delta_generator.DeltaGenerator,
    line: st.delta_generator.DeltaGenerator,
    text: st.delta_generator.DeltaGenerator,
) -> Callable[[Reply], None]:
    def paint(reply: Reply) -> None:
        _show_speed(speed, reply)
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


def show_history() -> None:
    """Show the earlier chats, folded, oldest first."""
    numbers = sorted({turn.chat for turn in history()} - {st.session_state.get(CHAT_NUMBER, 0)})
    for number in numbers:
        turns = [turn for turn in reversed(history()) if turn.chat == number]
        prompt = turns[0].question.prompt.strip()[:SHOWN]
        with st.expander(f"Earlier: {plain(prompt)}", icon=":material/history:"):
            for turn in turns:
                _show_turn(turn)


def show_turns() -> None:
    """Show the open chat, oldest question first: the latest answers are next to the prompt."""
    for turn in reversed(open_turns()):
        _show_turn(turn)


def show_next_steps(sources: Sequence[str]) -> None:
    """Show what to do after an answer. `sources` can be measured."""
    if not open_turns():
        return
    st.caption("Times are of one answer, seen from this page, and are no measurement. To compare speed, evaluate.")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "New chat",
            icon=":material/add_comment:",
            key="playground_new-chat",
            on_click=start_chat,
            help="The next question then belongs to no earlier one. This chat stays above, folded.",
        )
        if sources:
            navigation.link(
                "evaluate", "Measure speed and quality", ":material/speed:", variants=navigation.join_values(*sources)
            )


def _show_question(question: Question) -> None:
    """Show what was asked, and how."""
    drawn = f"temperature {question.temperature:g}" + (f", seed {question.seed}" if question.temperature else "")
    with st.chat_message("user"):
        if question.chat:
            st.markdown(plain(question.prompt))
        else:
            st.code(question.prompt, language=None, wrap_lines=True)
        st.caption(f"At most {question.max_tokens:,} tokens · {drawn}")


def _show_turn(turn: Turn) -> None:
    """Show a question and the answers beside each other; differences are marked once both are complete."""
    # 1. What was asked.
    _show_question(turn.question)
    # 2. Mark the differences once both answers are complete.
    if len(turn.replies) == 2 and all(reply.complete and not reply.error for reply in turn.replies):
        first, second = (reply.text for reply in turn.replies)
        sides = [*differences(first, second)]
        by_chance = "" if turn.question.temperature == 0 else " Above temperature 0 they differ by chance too."
        st.markdown(difference_sentence(first, second) + by_chance)
    else:
        sides = [[Piece(reply.text, False)] for reply in turn.replies]
    # 3. One column for each answer.
    for column, reply, pieces in zip(st.columns(len(turn.replies)), turn.replies, sides, strict=True):
        with column:
            _show_reply(reply, pieces)


def _heading(name: str) -> str:
    """Return a name in bold; an address as code, or Markdown would make it a link."""
    return f"`{name.replace('`', '')}`" if is_address(name) else f"**{plain(name)}**"


def _show_reply(reply: Reply, pieces: Sequence[Piece]) -> None:
    st.markdown(_heading(reply.name))
    if reply.text or not reply.error:
        _show_speed(st.empty(), reply)
        st.caption(timing_text(reply.timing))
    if reply.text:
        st.container(border=True).html(markup(pieces))
    if reply.error:
        st.error(message(reply.error), icon=":material/error:")
    elif not reply.complete:
        st.caption(":material/stop_circle: Stopped before its end.")
    elif not reply.text:
        st.info("The answer is empty: the model stopped immediately.", icon=":material/info:")
