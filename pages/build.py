"""Build: what recipe, and what will it do?"""

import streamlit as st

from app import recipe_form, recipe_options, recipe_verdict, recipe_yaml
from app.session import workspace
from app.words import message, plain

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Build", width="stretch")
action = head.container(width="content")

card = recipe_form.model(opened)
if card is None:
    st.caption("Choose a model of the list; the recipe you built is kept.")
    st.stop()
st.caption(plain(recipe_options.about(card)))

draft = recipe_form.current()
told = st.container()  # always there: what comes and goes in it must not close what is open below
if refused := recipe_form.error():
    told.error(message(refused), icon=":material/error:")
if draft.recipe is not None:
    source = st.query_params.get("model", card.id)
    judgement = recipe_verdict.judge(opened, card, source, draft.recipe)
else:
    judgement = recipe_verdict.Judgement()
with told:
    recipe_verdict.summary(card, judgement)
left, right = st.columns([3, 2], gap="large")

with left:
    recipe_form.goals(opened, card)
    if draft.recipe is not None:
        recipe_form.name(draft.recipe)
        recipe_form.steps(draft.recipe)
        recipe_form.add(opened, card, draft.recipe)
        recipe_form.serving(draft.recipe)
        recipe_form.limits(draft.recipe)
    else:
        st.error(f"{message(draft.error)} Correct it below, or start anew above.", icon=":material/error:")
    recipe_yaml.view(draft)
with right:
    recipe_verdict.validity(judgement)
    recipe_verdict.estimates(card, judgement)
with action:
    recipe_verdict.submit_button(opened, card, draft.recipe, judgement)
