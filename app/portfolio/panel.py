"""Which variant of an evaluation to serve at which load, within limits and quality floor of the planned load."""

from __future__ import annotations

import streamlit as st

from app import charts
from app.formatting import message, plain
from app.load_bar import address
from backend.domain.evaluation.document import Evaluation
from backend.domain.what_if.portfolio import make_portfolio
from backend.present import portfolio_words
from backend.present.charts.portfolio import throughput_with_switches

HEIGHT = 300


def show(document: Evaluation) -> None:
    """Draw the sentence, the chart with its switches, and what was left out; nothing where one variant was measured."""
    if len(document.variants) < 2:
        return
    st.subheader(portfolio_words.TITLE)
    # 1. The planned load's limits hold.
    load = address.current()
    portfolio = make_portfolio(document, load.limits, load.max_kl)
    if portfolio is None:
        st.caption(portfolio_words.TOO_FEW)
        return
    # 2. What to serve, and where to switch.
    st.markdown(message(portfolio_words.sentence(portfolio)))
    if portfolio.switches:
        figure = throughput_with_switches(document, portfolio, charts.theme())
        charts.show(charts.with_height(figure, HEIGHT), "evaluation-portfolio")
        st.caption(message(" ".join(portfolio_words.switch_sentences(portfolio))))
    for note in portfolio_words.note_sentences(portfolio):
        st.caption(message(note))
    st.caption(plain(portfolio_words.BASIS))
