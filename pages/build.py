"""Build: what recipe, and what will it do?"""

import streamlit as st

from app import charts
from app.builder import aws_settings, job_terms, readiness, recipe_form, yaml_editor
from app.builder import model_choice as recipe_model
from app.builder import target_choice as recipe_target
from app.drafts import payoff_panel
from app.formatting import message, plain
from app.session import workspace
from backend.domain.model.facts import ModelCard

opened = workspace()
st.html(readiness.sticky_style(charts.theme()))
head = st.container(horizontal=True, vertical_alignment="bottom", key="build_head")
head.title("Build", width="stretch")
action = head.container(width="content")

recipe_target.choose_kind(opened)
subject, place, load = st.columns([3, 3, 1])
with subject:
    model = recipe_model.choose(opened)
if model is None:
    st.caption("Choose a model of the list; the recipe you built is kept.")
    st.stop()
with place:
    target = recipe_target.choose(opened)
st.caption(plain(recipe_model.summary(model)))
with load:
    streams = recipe_target.choose_streams()
aws = (
    aws_settings.choose(opened, here=isinstance(model, ModelCard))
    if recipe_target.target_kind(target) == "sagemaker"
    else ()
)
request = recipe_target.choose_load(target, streams, aws)

draft = recipe_form.current_draft()
recipe_form.read_used_names(opened)
notices = st.container()  # always there: what comes and goes in it must not close what is open below
if refused := recipe_form.last_error():
    notices.error(message(refused), icon=":material/error:")
judgement = readiness.Judgement()
if draft.recipe is not None:
    judgement = readiness.check(opened, model, draft.recipe, request)
    with notices:
        if not refused:  # what was refused just now is not the recipe that the verdict is of
            readiness.show_summary(opened, model, judgement)
lived = job_terms.choose(target)
left, right = st.columns([3, 2], gap="large")
right = right.container(key="build_side")

with left:
    recipe_form.draw_goals(opened, model, judgement.place)
    if draft.recipe is not None:
        recipe_form.draw_name(draft.recipe)
        recipe_form.draw_steps(opened, draft.recipe)
        payoff_panel.show_on_build(opened, judgement.case)
        recipe_form.draw_add_menu(opened, model, draft.recipe, judgement.case)
        recipe_form.draw_serving(draft.recipe)
        recipe_form.draw_limits(draft.recipe)
    else:
        st.error(f"{message(draft.error)} Correct it below, or start anew above.", icon=":material/error:")
    plan = judgement.case.verdict.plan if judgement.case else None
    aws_settings.show_dry_run(judgement.shown, plan.notes if plan else ())
    yaml_editor.show(draft)
with right:
    readiness.show_reasons(judgement.case)
    readiness.show_estimate(opened, judgement)
with action:
    readiness.submit_button(opened, judgement, lived)
recipe_form.finish_run()
