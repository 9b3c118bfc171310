"""The entry of the studio: the shell around pages/. `whetstone up` runs it as `python -m streamlit run app/main.py`."""

from pathlib import Path

import streamlit as st

from app import shell
from app.jobs import finished_toasts

LOGO = Path(__file__).resolve().parent.parent / "assets" / "logo.svg"

st.set_page_config(page_icon=str(LOGO), layout="wide")
shell.run_page(finished_toasts.watch_jobs)
