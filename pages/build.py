"""Build: what recipe, and what will it do?"""

import streamlit as st

from app import recipe_form, recipe_model, recipe_target, recipe_verdict, recipe_yaml
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

draft = recipe_form.current()
told = st.container()  # always there: what comes and goes in it must not close what is open below
if refused := recipe_form.error():
    told.error(message(refused), icon=":material/error:")
judgement = recipe_verdict.Judgement()
if draft.recipe is not None:
    judgement = recipe_verdict.judge(opened, model, st.query_params["model"], draft.recipe, asked)
    with told:
        recipe_verdict.summary(model, judgement)
left, right = st.columns([3, 2], gap="large")

with left:
    recipe_form.goals(opened, model, judgement.place)
    if draft.recipe is not None:
        recipe_form.name(draft.recipe)
        recipe_form.steps(opened, draft.recipe)
        recipe_form.add(opened, model, draft.recipe, judgement.place)
        recipe_form.serving(draft.recipe)
        recipe_form.limits(draft.recipe)
    else:
        st.error(f"{message(draft.error)} Correct it below, or start anew above.", icon=":material/error:")
    recipe_yaml.view(draft)
with right:
    recipe_verdict.validity(judgement)
    recipe_verdict.estimates(opened, judgement)
with action:
    recipe_verdict.submit_button(opened, draft.recipe, judgement)
