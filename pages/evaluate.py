"""Evaluate: how fast, how good and how expensive is it under my load?"""

import streamlit as st

from app import navigation, quality_confirmation, shell, url_parameters
from app.evaluate import form, live_progress, task_fields
from app.evaluate import workload_choice as workload_form
from app.formatting import plain, shorten
from app.results import evaluation_page, past_evaluations
from app.session import workspace
from backend.domain.errors import NotFound
from backend.service.evaluations import evaluations
from backend.service.models import variants

opened = workspace()
evaluation_id, job_id = url_parameters.query().get("id"), url_parameters.query().get("job")

if evaluation_id:
    try:
        view = evaluations.show(opened, evaluation_id)
    except NotFound:
        shell.refuse_page(
            f"There is no evaluation {plain(shorten(evaluation_id, 60))} here: it may belong to another home.",
            "evaluate",
            "New evaluation",
            title="Evaluate",
            new="true",
        )
    navigation.name_tab(view.title)
    evaluation_page.show(opened, view)
    st.stop()

head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Evaluate", width="stretch")
action = head.container(width="content", horizontal=True, vertical_alignment="center")
if job_id:
    live_progress.show(opened, job_id)
elif not form.is_requested() and past_evaluations.has_any(opened):
    with action:
        if st.button("New evaluation", type="primary", icon=":material/add:", key="evaluate_new", shortcut="Alt+N"):
            suggested = form.suggest_variants(opened)
            navigation.go("evaluate", new="true", **({"variants": suggested} if suggested else {}))
    past_evaluations.show_past(opened)
else:
    if not form.is_requested() and (suggested := form.suggest_variants(opened)):
        url_parameters.query().update(new="true", variants=suggested)
    outlook = st.container()
    sources = form.choose_variants(opened)
    workload = workload_form.choose(opened, sources[0] if sources else None)
    fields = form.choose_load() | task_fields.choose_tasks(opened) | form.choose_token(sources)
    fields["anyway"] = quality_confirmation.confirm(opened, sources, "evaluate")
    sources = form.measured_sources(sources, fields)
    request = form.check(opened, sources, workload, fields)
    with outlook:
        form.show_outlook(opened, request, sources)
    with action:
        form.submit_button(opened, request)
    form.show_command(request, sources, ruined=bool(variants.floor_warnings(opened, sources)))
    past_evaluations.show_past(opened)
