"""Catalog: which model, and what can be done to it here?"""

from math import ceil

import streamlit as st

from app import navigation
from app.models import Checks, matches, row, technique_rows
from app.results import source
from app.session import workspace
from app.words import plain
from backend.service import models, techniques

PER_PAGE = 20
opened = workspace()


def first_page() -> None:
    st.session_state["page"] = 1


with st.container(horizontal=True, vertical_alignment="bottom"):
    st.title("Catalog", width="stretch")
    if st.button("Import a model", type="primary", icon=":material/download_done:", shortcut="Alt+N"):
        navigation.go("import")
st.markdown("Models that come with Whetstone, were imported or optimized before. Each technique is checked for this machine.")
with st.container(horizontal=True, vertical_alignment="bottom"):
    words = st.text_input("Words", key="words", type="search", max_chars=80, bind="query-params", on_change=first_page, width=320)
    wanted = st.pills(
        "Must work here", techniques.titles(), selection_mode="multi", key="works", bind="query-params", on_change=first_page
    )

with st.spinner("Reading the models"):
    known = models.known(opened)
    checked = Checks(lambda card: techniques.checks(opened, card))
    found = [model for model in known if matches(model, words or "") and checked.work(model.card, wanted)]
if not found:
    st.info("No model matches these filters: take one away, or use a folder of your own.", icon=":material/filter_alt_off:")
    st.stop()

pages = ceil(len(found) / PER_PAGE)
page = st.pagination(pages, key="page", bind="query-params") if pages > 1 else 1
first = (page - 1) * PER_PAGE
shown = [(model, checked.of(model.card)) for model in found[first : first + PER_PAGE]]
st.caption(f"{first + 1} to {first + len(shown)} of {len(found)}. Choose a row to open the model.")
picked = st.dataframe(
    [row(model, checks) for model, checks in shown],
    hide_index=True,
    key=f"models-{first}",
    on_select="rerun",
    selection_mode="single-row",
    alt="The models, with a column a technique that says whether it works on this machine",
)
if picked.selection.rows:
    navigation.go("model", id=source(shown[picked.selection.rows[0]][0].card))
with st.container(horizontal=True):
    for model, _ in shown:
        navigation.link("model", plain(model.card.id), ":material/deployed_code:", id=source(model.card))

refused = [(model, check) for model, checks in shown for check in checks if not check.works]
st.subheader("Why not")
if refused:
    rows = [{"Model": model.card.id, **line} for model, check in refused for line in technique_rows([check])]
    st.dataframe(rows, hide_index=True, column_order=("Model", "Technique", "Why not", "Nearest that works", "Source"))
else:
    st.caption("Every technique works on every model shown.")
