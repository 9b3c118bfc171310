"""The configuration check of an evaluation: a red box above the verdict, and the list of findings."""

from __future__ import annotations

import streamlit as st

from app.formatting import message, plain
from backend.domain.evaluation.document import Evaluation
from backend.present.words import evidence

SIGNS = {
    "as configured": ":material/check_circle:",
    "not as configured": ":material/cancel:",
    "not verified": ":material/help:",
}


def show_failures(document: Evaluation) -> None:
    """Show in red what was not served as configured; nothing if everything visible was."""
    sentences = evidence.off_sentences(document)
    if sentences:
        lines = [f"**{evidence.TITLE}.** {message(sentences[0])}", *(message(sentence) for sentence in sentences[1:])]
        st.error("\n\n".join(lines), icon=":material/power_off:")


def show_line(document: Evaluation) -> None:
    """Show in one line what was verified."""
    if words := evidence.line(document):
        st.caption(f":material/verified: {message(words)}")


def show(document: Evaluation) -> None:
    """Show every finding by variant: what was requested, whether it was done, and the evidence."""
    if not any(result.findings for result in document.variants):
        return
    st.subheader("Configuration check")
    rows = evidence.rows(document)
    for name in dict.fromkeys(row["Variant"] for row in rows):
        lines = [_line(row) for row in rows if row["Variant"] == name]
        st.markdown("\n".join([f"**{plain(name)}**", "", *lines]))


def _line(row: dict[str, str]) -> str:
    text = " ".join(filter(None, (row["Evidence"], row["Likely cause"])))
    return f"- {SIGNS[row['State']]} {row['Setting'] or 'All'}, {row['State']}: {message(text)}"
