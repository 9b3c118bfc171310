"""The studio's entry: the shell around pages/. Run by `whetstone up` as `python -m streamlit run app/main.py`."""

import streamlit as st

from app import shell

st.set_page_config(page_title="Whetstone", page_icon=":material/architecture:", layout="wide")
shell.run()
