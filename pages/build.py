"""Build: what recipe, and what will it do?"""

import streamlit as st

from app import charts
from app.builder import (
    aws_settings,
    job_terms,
    model_choice,
    readiness,
    readiness_panel,
    recipe_form,
    target_choice,
    yaml_editor,
)
from app.drafts import payoff_panel
from app.formatting import message, plain
from app.session import workspace
from backend.domain.machine.targets import target_kind
from backend.domain.model.facts import ModelCard

opened = workspace()
st.html(readiness_panel.sticky_style(charts.theme()))
head = st.container(horizontal=True, vertical_alignment="bottom", key="build_head")
head.title("Build", width="stretch")
action = head.container(width="content")

target_choice.choose_kind(opened)
subject, place = st.columns(2)
with subject:
    model = model_choice.choose(opened)
if model is None:
    st.caption("Choose a model from the list. Your recipe is not lost.")
    st.stop()
with place:
    target = target_choice.choose(opened)
st.caption(plain(model_choice.summary(model)))
aws = aws_settings.choose(opened, here=isinstance(model, ModelCard)) if target_kind(target) == "sagemaker" else ()
request = target_choice.choose_request(target, model, aws)

draft = recipe_form.current_draft()
recipe_form.read_used_names(opened)
notices = st.container()  # always drawn, so that expanders below stay open when notices change
if refused := recipe_form.last_error():
    notices.error(message(refused), icon=":material/error:")
state: readiness.Readiness = readiness.Unknown()
if draft.recipe is not None:
    state = readiness.check(opened, model, draft.recipe, request)
    with notices:
        if not refused:  # a change that was just refused is not part of the recipe that was checked
            readiness_panel.show_summary(opened, model, state)
terms = job_terms.choose(target, readiness.find_unserved(state) if target_kind(target) == "local" else None)
case = readiness.find_case(state)
left, right = st.columns([3, 2], gap="large")
right = right.container(key="build_side")

with left:
    recipe_form.draw_goals(opened, model, readiness.known_target(state))
    if draft.recipe is not None:
        recipe_form.draw_name(draft.recipe)
        recipe_form.draw_steps(opened, draft.recipe, experts=bool(model.experts))
        payoff_panel.show_on_build(opened, case)
        recipe_form.draw_add_menu(opened, model, draft.recipe, case)
        recipe_form.draw_serving(draft.recipe)
        recipe_form.draw_limits(draft.recipe)
    else:
        st.error(f"{message(draft.error)} Correct it below, or start again above.", icon=":material/error:")
    plan = case.verdict.plan if case else None
    aws_settings.show_dry_run(readiness.find_preview(state), plan.notes if plan else ())
    yaml_editor.show(draft)
with right:
    readiness_panel.show_reasons(case)
    readiness_panel.show_estimate(opened, state)
    readiness_panel.show_notes(case)
with action:
    readiness_panel.submit_button(opened, state, terms)
