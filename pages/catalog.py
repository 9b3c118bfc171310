"""Catalog: which model, and what can be done to it here?"""

from math import ceil

import streamlit as st

from app import navigation
from app.models import filters, table
from app.session import workspace
from app.words import message, plain
from backend.service.models import catalog

opened = workspace()
with st.container(horizontal=True, vertical_alignment="bottom"):
    st.title("Catalog", width="stretch")
    if st.button("Import a model", type="primary", icon=":material/download_done:", shortcut="Alt+N"):
        navigation.go("import")

stale = catalog.refresh(opened)
if stale:
    st.warning(message(stale), icon=":material/sync_problem:")
chosen = filters.choose(opened)
with st.spinner("Holding the models against the rules"):
    total = catalog.count(opened, chosen)
if not total:
    st.info("No model matches these filters: take one away, or import a model of your own.", icon=":material/filter_alt_off:")
    st.stop()

pages = ceil(total / catalog.PER_PAGE)
with st.container(horizontal=True, vertical_alignment="center"):
    chosen = filters.order(chosen)
    number = st.pagination(pages, key="catalog_page", bind="query-params") if pages > 1 else 1
    lines = catalog.page(opened, chosen, number)
    first = (number - 1) * catalog.PER_PAGE
    st.caption(f"{first + 1} to {first + len(lines)} of {total}. Choose a row to open the model.")
picked = st.dataframe(
    [table.row(line) for line in lines],
    hide_index=True,
    key=f"catalog_models-{first}",
    on_select="rerun",
    selection_mode="single-row",
    column_config=table.columns(),
    alt="The models, with what is published of each technique and whether it works where you chose",
)
# Not by the name of the filter: Streamlit lets nobody set a parameter that a widget of the page is bound to.
place = {"model_on": chosen.target} if chosen.target not in {None, "local"} else {}
if picked.selection.rows:
    navigation.go("model", id=lines[picked.selection.rows[0]].entry.source, **place)
st.caption(table.legend(chosen.target))
with st.container(horizontal=True):
    for line in lines:
        navigation.link("model", plain(table.title(line.entry)), ":material/deployed_code:", id=line.entry.source, **place)

if st.toggle("Say why not", key="catalog_why", bind="query-params"):
    rows = table.why_not(lines)
    if rows:
        st.dataframe(rows, hide_index=True, alt="Every technique that does not work, with the reason and its source")
    else:
        st.caption("Every technique works on every model shown.")
