"""Catalog: which model, and what can be done to it here?"""

import streamlit as st

from app import charts, navigation, url_parameters
from app.formatting import message, plain
from app.load_bar import address
from app.models import catalog_filters, catalog_table
from app.session import workspace
from backend.domain.model.facts import ModelFacts
from backend.domain.planner.planned_load import PlannedLoad
from backend.service.models import catalog
from backend.service.plans import token_prices

opened = workspace()


@st.cache_data(ttl=60, show_spinner=False, max_entries=500)  # type: ignore[untyped-decorator]
def cheapest(source: str, discount: float, region: str | None, _model: ModelFacts) -> catalog.CheapestInstance | None:
    """Return the cheapest instance, cached for a minute: every instance is checked for each row."""
    return catalog.cheapest_instance(opened, _model)


@st.cache_data(ttl=60, show_spinner=False, max_entries=500)  # type: ignore[untyped-decorator]
def priced(
    source: str, target: str | None, load: PlannedLoad, discount: float, _model: ModelFacts
) -> token_prices.ModelPrice | None:
    """Return the price on the chosen instance, else the lowest price per token. Cached likewise."""
    return token_prices.find_price(opened, _model, target=target, expected_load=load.expected, goal=load.goal)


with st.container(horizontal=True, vertical_alignment="bottom"):
    st.title("Catalog", width="stretch")
    if st.button("Import a model", type="primary", icon=":material/download_done:", shortcut="Alt+I"):
        navigation.go("import")

notice = st.container()  # always drawn, so that the filters below keep what is being typed
stale = catalog.refresh(opened)
if stale:
    notice.warning(message(stale), icon=":material/sync_problem:")
chosen = catalog_filters.choose(opened)
with st.spinner("Checking the models"):
    total = catalog.count(opened, chosen)
if not total:
    st.info(
        "No model matches these filters. Remove a filter, or import your own model.",
        icon=":material/filter_alt_off:",
    )
    st.stop()

with st.container(horizontal=True, vertical_alignment="center"):
    chosen = catalog_filters.choose_order(chosen)
    number, first = navigation.paginate(total, catalog.PER_PAGE)
    lines = catalog.page(opened, chosen, number)
    st.caption(f"{first + 1} to {first + len(lines)} of {total}. Click a model to open it.")
everything = st.session_state.get("catalog_columns", url_parameters.query().get("catalog_columns") == "true")
place = None if chosen.target == "local" else chosen.target
models = [(line.entry.source, line.entry.model) for line in lines]
load, discount = address.current(), opened.settings.discount
prices = [priced(source, place, load, discount, model) for source, model in models]
rows = [
    catalog_table.row(line, cheapest(source, discount, load.region, model), price)
    for line, (source, model), price in zip(lines, models, prices, strict=True)
]
if unfit := catalog_table.unfit_sentence(lines, chosen.target):
    st.caption(plain(unfit))
picked = st.dataframe(
    catalog_table.styled_rows(rows, charts.theme()),
    hide_index=True,
    key=f"catalog_models-{first}",
    on_select="rerun",
    selection_mode="single-cell",
    column_config=catalog_table.column_config(pinned=everything),
    column_order=None if everything else catalog_table.COMPACT,
    height=catalog_table.table_height(len(lines)),
    alt="The models, with what works of each technique where you chose, what fits, and what is published",
)
# Not by the name of the filter: Streamlit lets nobody set a parameter that a widget of the page is bound to.
if picked.selection.cells:
    checked = {"model_on": place or catalog_filters.HERE} if place or address.current().target else {}
    navigation.go("model", id=lines[picked.selection.cells[0][0]].entry.source, **checked)
st.caption(plain(catalog_table.price_note([price for price in prices if price])))
st.toggle(
    "All columns",
    key="catalog_columns",
    bind="query-params",
    help="Each technique, what is published, licence and more.",
)
st.caption(catalog_table.legend(chosen.target))
if st.toggle("Show reasons", key="catalog_why", bind="query-params"):
    refused = catalog_table.reason_rows(lines)
    if refused:
        st.dataframe(refused, hide_index=True, alt="Every technique that does not work, with the reason and its source")
    else:
        st.caption("Every technique works on every shown model.")
