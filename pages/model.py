"""Model: what is it, what fits it, what has been tried?"""

import streamlit as st

from app import navigation, shell
from app.models import facts, figures, technique_rows
from app.presets import model_presets
from app.results import artifact_rows, provenance, source, verdicts
from app.session import workspace
from app.words import plain
from backend.domain.errors import RequestError
from backend.service import artifacts, evaluations, models, techniques

SHOWN = 20
opened = workspace()
wanted = st.query_params.get("id", "")
if not wanted:
    st.title("Model")
    st.info("Choose a model in the catalog, and its card will stand here.", icon=":material/info:")
    navigation.link("catalog", "Open the catalog", ":material/menu_book:")
    st.stop()
try:
    card = models.resolve(opened, wanted)
except RequestError as error:
    shell.refuse(plain(str(error)), "catalog", "Back to the catalog", title="Model")
own = source(card)

with st.container(horizontal=True, vertical_alignment="bottom"):
    st.title(plain(card.id), width="stretch")
    if st.button("Optimize", type="primary", icon=":material/construction:", shortcut="Alt+O"):
        navigation.go("build", model=own)
shell.figures(figures(card))

st.subheader("Techniques, as checked for this machine")
st.dataframe(technique_rows(techniques.checks(opened, card)), hide_index=True, alt="Techniques and whether they work here")
if card.quantization:
    st.info(f"These weights are quantized already ({card.quantization}).", icon=":material/info:")

st.subheader("Artifacts made from it")
made = [view for view in artifacts.listing(opened, model=card.id, limit=SHOWN) if view.manifest.parent.path == card.path]
if made:
    st.dataframe(artifact_rows(made), hide_index=True, alt="Artifacts with size and quality")
    with st.container(horizontal=True):
        for view in made[:5]:
            label = f"Evaluate {plain(view.recipe)} ({view.id})"
            navigation.link("evaluate", label, ":material/speed:", variants=navigation.several(own, view.id))
            navigation.link("job", f"Job of {view.id}", ":material/open_in_full:", id=view.job_id)
else:
    st.caption("Nothing yet: what you optimize will stand here with its size and quality.")

st.subheader("Evaluations against it")
measured = evaluations.listing(opened, baseline=card.id, limit=5)
for evaluation in measured:
    with st.container(border=True, key=f"evaluation-{evaluation.id}"):
        st.markdown(f"**{plain(evaluation.title)}**")
        for sentence in verdicts(evaluation.document):
            st.markdown(f"- {sentence}")
        st.caption(plain(provenance(evaluation)))
        navigation.link("evaluate", "Open", ":material/open_in_full:", id=evaluation.id)
if not measured:
    st.caption("Nothing measured yet: verdicts against this model will stand here.")
    navigation.link("evaluate", "Evaluate it", ":material/speed:", variants=navigation.several(own))

model_presets(opened, own)

with st.expander("The card, as read from config.json and the weights", icon=":material/description:"):
    st.dataframe(facts(card), hide_index=True, alt="Facts of the model")
