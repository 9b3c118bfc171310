"""The entry of the studio: the shell around pages/. `whetstone up` runs it as `python -m streamlit run app/main.py`."""

from pathlib import Path

import streamlit as st

from app import shell
from app.jobs import finished_toasts

LOGO = Path(__file__).resolve().parent.parent / "assets" / "logo.svg"

SIDEBAR = 240  # width of the menu in pixels, until a person drags it

st.set_page_config(page_icon=str(LOGO), layout="wide", initial_sidebar_state=SIDEBAR)
st.logo(str(LOGO), size="large")
shell.run_page(finished_toasts.watch_jobs)
