"""Build: what recipe, and what will it do?"""

import streamlit as st

from app import charts
from app.build import elsewhere, form, life, verdict, yaml_text
from app.build import model as recipe_model
from app.build import target as recipe_target
from app.drafts import payoff
from app.session import workspace
from app.words import message, plain
from backend.domain.model.facts import ModelCard

opened = workspace()
st.html(verdict.stays_in_view(charts.theme()))
head = st.container(horizontal=True, vertical_alignment="bottom", key="build_head")
head.title("Build", width="stretch")
action = head.container(width="content")

recipe_target.choose_place(opened)
subject, place, load = st.columns([3, 3, 1])
with subject:
    model = recipe_model.choose(opened)
if model is None:
    st.caption("Choose a model of the list; the recipe you built is kept.")
    st.stop()
with place:
    target = recipe_target.choose(opened)
st.caption(plain(recipe_model.about(model)))
with load:
    streams = recipe_target.streams()
aws = (
    elsewhere.settings(opened, here=isinstance(model, ModelCard)) if recipe_target.place(target) == "sagemaker" else ()
)
asked = recipe_target.expected(target, streams, aws)

draft = form.current()
form.remember_names(opened)
told = st.container()  # always there: what comes and goes in it must not close what is open below
if refused := form.error():
    told.error(message(refused), icon=":material/error:")
judgement = verdict.Judgement()
if draft.recipe is not None:
    judgement = verdict.judge(opened, model, draft.recipe, asked)
    with told:
        if not refused:  # what was refused just now is not the recipe that the verdict is of
            verdict.summary(opened, model, judgement)
lived = life.choose(target)
left, right = st.columns([3, 2], gap="large")
right = right.container(key="build_side")

with left:
    form.goals(opened, model, judgement.place)
    if draft.recipe is not None:
        form.name(draft.recipe)
        form.steps(opened, draft.recipe)
        payoff.beside(opened, judgement.case)
        form.add(opened, model, draft.recipe, judgement.case)
        form.serving(draft.recipe)
        form.limits(draft.recipe)
    else:
        st.error(f"{message(draft.error)} Correct it below, or start anew above.", icon=":material/error:")
    plan = judgement.case.verdict.plan if judgement.case else None
    elsewhere.dry_run(judgement.shown, plan.notes if plan else ())
    yaml_text.view(draft)
with right:
    verdict.validity(judgement.case)
    verdict.estimated(opened, judgement)
with action:
    verdict.submit_button(opened, judgement, lived)
form.settled()
