"""Tune: which stack is best for my model, within my limits?"""

import streamlit as st

from app import shell, url_parameters
from app.formatting import plain, shorten
from app.session import workspace
from app.tuning import form, past_searches, search_page
from backend.domain.errors import NotFound

opened = workspace()
search_id = url_parameters.query().get("id")
if search_id:
    try:
        search_page.show(opened, search_id)
    except NotFound:
        shell.refuse_page(
            f"There is no search {plain(shorten(search_id, 60))} here: it may belong to another home.",
            "tune",
            "New search",
            title="Tune",
            new="true",
        )
    st.stop()

st.title("Tune")
st.markdown(
    "Finds the best stack for a model: engine, weights, speculation, cache and settings, within your limits and a "
    "budget of time."
)
form.draw(opened)
past_searches.show(opened)
