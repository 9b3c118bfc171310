"""The studio's entry: navigation over pages/. Run by `whetstone up` as `python -m streamlit run app/main.py`."""

from pathlib import Path

import streamlit as st

PAGES = Path(__file__).resolve().parent.parent / "pages"

st.set_page_config(page_title="Whetstone", layout="wide")
st.navigation(
    {
        "Optimize": [st.Page(PAGES / "jobs.py", title="Jobs", icon=":material/list:", default=True)],
    }
).run()
