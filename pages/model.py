"""Model: what is it, what fits it, what has been tried?"""

import streamlit as st

from app import navigation, shell
from app.field_labels import sentence
from app.formatting import plain
from app.models import catalog_table, import_remote, model_page
from app.models.model_rows import facts, figures, quantized_words
from app.presets.preset_page import model_presets
from app.session import workspace
from backend.domain.errors import RequestError
from backend.domain.model.facts import ModelCard, PublishedModel
from backend.service.models import catalog

opened = workspace()
wanted = st.query_params.get("id", "")
if not wanted:
    st.title("Model")
    st.info("Choose a model in the catalog, and its card will stand here.", icon=":material/info:")
    navigation.link("catalog", "Open the catalog", ":material/menu_book:")
    st.stop()
try:
    entry = catalog.show(opened, wanted)
except RequestError as error:
    shell.refuse(plain(sentence(error)), "catalog", "Back to the catalog", title="Model")
model = entry.model

with st.container(horizontal=True, vertical_alignment="bottom"):
    st.title(plain(catalog_table.title(entry)), width="stretch")
    if isinstance(model, PublishedModel):
        if st.button("Import", icon=":material/download:", shortcut="Alt+I"):
            import_remote.ask(model.hf_repo)
            navigation.go("import", import_folder=model.hf_repo)
        if st.button("Plan a recipe", type="primary", icon=":material/construction:", shortcut="Alt+O"):
            navigation.go("build", model=entry.source, **model_page.chosen(opened, model))
    elif st.button("Optimize", type="primary", icon=":material/construction:", shortcut="Alt+O"):
        navigation.go("build", model=entry.source, **model_page.chosen(opened, model))
if isinstance(model, PublishedModel):
    model_page.published(model)
shell.figures(figures(model))
price = st.container()

st.subheader("Techniques")
target = model_page.cells(opened, entry)
with price:
    model_page.price(opened, model, target)
if model.quantization:
    st.info(plain(quantized_words(model)), icon=":material/info:")
model_page.draft(entry)

model_presets(opened, entry.source)

st.subheader("Memory on each instance")
model_page.memory(opened, entry)

if isinstance(model, ModelCard):
    model_page.tried(opened, model, entry.source)
with st.expander("The card", icon=":material/description:"):
    st.dataframe(facts(model), hide_index=True, alt="Facts of the model")
