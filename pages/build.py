"""Build: what recipe, and what will it do?"""

import streamlit as st

from app.build import form, verdict, yaml_text
from app.build import model as recipe_model
from app.build import target as recipe_target
from app.session import workspace
from app.words import message, plain

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Build", width="stretch")
action = head.container(width="content")

subject, place = st.columns([3, 2], gap="large")
with subject:
    model = recipe_model.choose(opened)
if model is None:
    st.caption("Choose a model of the list; the recipe you built is kept.")
    st.stop()
with place:
    target = recipe_target.choose(opened)
st.caption(plain(recipe_model.about(model)))
asked = recipe_target.expected(target)

draft = form.current()
told = st.container()  # always there: what comes and goes in it must not close what is open below
if refused := form.error():
    told.error(message(refused), icon=":material/error:")
judgement = verdict.Judgement()
if draft.recipe is not None:
    judgement = verdict.judge(opened, model, draft.recipe, asked)
    with told:
        verdict.summary(model, judgement)
left, right = st.columns([3, 2], gap="large")

with left:
    form.goals(opened, model, judgement.place)
    if draft.recipe is not None:
        form.name(draft.recipe)
        form.steps(opened, draft.recipe)
        form.add(opened, model, draft.recipe, judgement.case)
        form.serving(draft.recipe)
        form.limits(draft.recipe)
    else:
        st.error(f"{message(draft.error)} Correct it below, or start anew above.", icon=":material/error:")
    yaml_text.view(draft)
with right:
    verdict.validity(judgement.case)
    verdict.estimated(opened, judgement)
with action:
    verdict.submit_button(opened, draft.recipe, judgement)
form.settled()
