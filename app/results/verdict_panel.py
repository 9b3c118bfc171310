"""The verdict of an evaluation: one line, caveats, a word per variant and load, and the offer to measure more."""

from __future__ import annotations

import math
from collections.abc import Mapping

import streamlit as st

from app import idempotency, navigation
from app.evaluate import form
from app.formatting import duration_range, message, plain, strong
from app.load_bar import address
from app.navigation import page_key
from app.results import configuration_check, verdict_grid
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import counted
from backend.present import evaluation_top, load_words
from backend.present.words import headline, load_search
from backend.present.words.verdicts import LevelVerdict, level_verdicts
from backend.service import Workspace
from backend.service.evaluations import continuation
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.jobs import progress


def show_verdict(document: Evaluation) -> None:
    """Show what was not served as configured in red, then the verdict in one line; for a search, what it found."""
    configuration_check.show_failures(document)
    if load_search.is_search(document):
        show_search(document)
    else:
        show_line(document, *evaluation_top.read_top(document).verdict)


def show_several(documents: Mapping[str, Evaluation]) -> None:
    """Show the verdict of each evaluation in a line after its title, and first what was not served as configured."""
    for document in documents.values():
        configuration_check.show_failures(document)
    lines = []
    for title, document in documents.items():
        words = " ".join(evaluation_top.read_top(document).verdict)
        lines.append(f"- **{plain(title)}.** {strong(words)}")
    st.markdown("\n".join(lines))


def show_line(document: Evaluation, sentence: str) -> None:
    """Show the sentence of a verdict in the colour of its tone."""
    words, tone = strong(sentence), evaluation_top.verdict_tone(document)
    if tone == "win":
        st.success(words, icon=":material/trophy:")
    elif tone == "noisy":
        st.warning(words, icon=":material/graphic_eq:")
    else:
        st.info(words, icon=":material/balance:")


def show_other_load(document: Evaluation) -> None:
    """Say under which load it was measured where that is not the planned one; nothing where it is."""
    if sentence := load_words.evaluation_elsewhere(document, address.current()):
        st.caption(message(sentence))


def show_details(document: Evaluation, shown: Evaluation) -> None:
    """Draw the whole headline, the grid of the `shown` variants, and every verdict; nothing for a search."""
    if load_search.is_search(document):
        return
    st.markdown(strong(headline.headline_sentence(document)))
    verdict_grid.show(shown)
    if len(document.variants) > 1:
        st.caption(
            f"Output tokens/s against {plain(document.variants[0].name)}: geometric means over slices, so "
            "their quotient is the factor; in brackets its 95% interval. Latencies are in the full verdicts "
            "below."
        )
    with st.expander("Full verdicts, with every latency", icon=":material/balance:"):
        show_sentences(shown)


def more_button(opened: Workspace, view: EvaluationView, *, within_s: float = math.inf) -> bool:
    """Draw the button that measures more rounds and opens the job, if they would decide within that time.

    If that was done, link the result. Return whether anything was drawn.
    """
    # 1. A continuation that exists is linked.
    document = view.document
    later = next(iter(continuation.find_continuations(opened, view.id)), None)
    if later is not None:
        evaluation_id = str(later.result.get("evaluation", ""))
        parameters = {"id": evaluation_id} if evaluation_id else {"job": later.id}
        navigation.link("evaluate", "Result with more rounds", ":material/add_chart:", **parameters)
        return True
    # 2. How many rounds would decide.
    verdicts = [] if load_search.is_search(document) else headline.throughput_verdicts(document)
    more = headline.more_blocks(verdicts)
    if more is None:
        return False
    # 3. The button.
    took = progress.expected_evaluation_time(opened, continuation.continued_spec(view, more))
    if took is not None and took.low > within_s:
        return False
    label = f"Measure {counted(more, 'more block')}" + (f" ({duration_range(took.low, took.high)})" if took else "")
    about = (
        f"To decide {message(headline.decided_places(verdicts))}: the same variants and load with other prompts. "
        "The rounds measured so far count too."
    )
    if st.button(
        label,
        icon=":material/add_chart:",
        key=page_key(f"more-{view.id}"),
        **{"help": about, **disabled_unless_allowed(opened)},
    ):
        _measure_more(opened, view, more)
    if refused := st.session_state.get(page_key(f"refused-{view.id}")):
        st.error(refused, icon=":material/error:")
        repeat = form.repeat_parameters(document) | {"evaluate_repeats": str(document.options.repeats + more)}
        navigation.link("evaluate", "Start a new evaluation", ":material/refresh:", **repeat)
    return True


def _measure_more(opened: Workspace, view: EvaluationView, more: int) -> None:
    """Submit the continuation; if it cannot be continued, store the reason for the page."""
    try:
        mark = idempotency.submission_key("more", f"{view.id}-{more}", for_s=idempotency.DOUBLE_CLICK_S)
        job = continuation.submit(opened, continuation.prepare(opened, view.id, more), submission=mark)
    except WhetstoneError as error:
        st.session_state[page_key(f"refused-{view.id}")] = message(error)
    else:
        idempotency.remember_job("more", job.id)
        navigation.go("evaluate", job=job.id)


def verdict_icon(verdict: LevelVerdict) -> str:
    """Return a sign for the words that follow, never instead of them."""
    if any(row.why for row in verdict.rows):
        return ":material/help:"
    return ":material/equal:" if verdict.throughput == "same" else ":material/balance:"


def show_search(document: Evaluation) -> None:
    """Show a sentence per variant: the highest load within the limits, the knee, and what limited it."""
    lines = (f":material/search: {message(sentence)}" for sentence in load_search.sentences(document))
    st.markdown("\n\n".join(lines))
    st.caption(load_search.MEANING)


def show_sentences(document: Evaluation) -> None:
    """Show the verdicts with every latency."""
    if load_search.is_search(document):
        show_search(document)
        return
    all_verdicts: list[LevelVerdict] = level_verdicts(document)
    if not all_verdicts:
        st.info(
            "Only one variant was measured. Add another one for a verdict.",
            icon=":material/info:",
        )
    else:  # one element: a browser is slow with hundreds
        st.markdown("\n\n".join(f"{verdict_icon(verdict)} {message(verdict.text)}" for verdict in all_verdicts))
