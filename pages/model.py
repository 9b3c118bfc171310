"""Model: what is it, what fits it, what has been tried?"""

import streamlit as st

from app import navigation, shell, url_parameters
from app.formatting import message, plain
from app.models import catalog_table, import_remote, model_page, summary_tiles
from app.models.model_rows import fact_rows, quantized_sentence
from app.presets.preset_page import show_model_presets
from app.session import workspace
from backend.domain.errors import RequestError
from backend.domain.model.facts import ModelCard, PublishedModel
from backend.service.models import catalog

opened = workspace()
model_id = url_parameters.query().get("id", "")
if not model_id:
    st.title("Model")
    st.info("Choose a model in the catalog to see its card here.", icon=":material/info:")
    navigation.link("catalog", "Open the catalog", ":material/menu_book:")
    st.stop()
try:
    entry = catalog.show(opened, model_id)
except RequestError as error:
    shell.refuse_page(message(error), "catalog", "Back to the catalog", title="Model")
model = entry.model
navigation.name_tab(catalog_table.model_title(entry))

with st.container(horizontal=True, vertical_alignment="bottom"):
    st.title(plain(catalog_table.model_title(entry)), width="stretch")
    if isinstance(model, PublishedModel):
        if st.button("Import", icon=":material/download:", shortcut="Alt+I"):
            import_remote.request_card(model.hf_repo)
            navigation.go("import", import_folder=model.hf_repo)
        if st.button("Plan a recipe", type="primary", icon=":material/construction:", shortcut="Alt+O"):
            navigation.go("build", model=entry.source, **model_page.builder_parameters(opened, model))
    elif st.button("Optimize", type="primary", icon=":material/construction:", shortcut="Alt+O"):
        navigation.go("build", model=entry.source, **model_page.builder_parameters(opened, model))
if isinstance(model, PublishedModel):
    model_page.show_published(model)
top = st.container()
model_page.show_engines(opened, model)
price = st.container()

st.subheader("Techniques")
target = model_page.show_techniques(opened, entry)
known_price = model_page.find_price(opened, model, target)
with top:
    summary_tiles.show(opened, model, entry.source, known_price)
with price:
    model_page.show_price(model, known_price, target)
    model_page.show_instances(opened, model)
if model.quantization:
    st.info(message(quantized_sentence(model)), icon=":material/info:")
model_page.show_draft(entry)

show_model_presets(opened, entry.source)

st.subheader("Memory on each instance")
model_page.show_memory(opened, entry)

if isinstance(model, ModelCard):
    model_page.show_history(opened, model, entry.source)
with st.expander("The card", icon=":material/description:"):
    st.dataframe(fact_rows(model), hide_index=True, alt="Facts of the model")
