"""Evaluate: how fast, how good and how expensive is it under my load?"""

import streamlit as st

from app import navigation, quality_confirmation, shell
from app.compare import what_if_url
from app.evaluate import form, live_progress
from app.evaluate import workload_choice as workload_form
from app.formatting import plain, shorten
from app.results import evaluation_page, past_evaluations
from app.session import workspace
from backend.domain.errors import NotFound
from backend.service.evaluations import evaluations
from backend.service.models import variants

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Evaluate", width="stretch")
action = head.container(width="content", horizontal=True, vertical_alignment="center")
evaluation_id, job_id = st.query_params.get("id"), st.query_params.get("job")

if evaluation_id:
    try:
        view = evaluations.show(opened, evaluation_id)
    except NotFound:
        shell.refuse_page(
            f"There is no evaluation {plain(shorten(evaluation_id, 60))} here: it may belong to another home.",
            "evaluate",
            "New evaluation",
            new="true",
        )
    navigation.name_tab(view.title)
    st.subheader(plain(view.title), help=view.id)
    with action:
        navigation.link("evaluate", "All evaluations", ":material/history:")
        comparison = st.container(width="content")
        navigation.link("evaluate", "Measure again", ":material/refresh:", **form.repeat_parameters(view.document))
    what_if = evaluation_page.show(opened, view)
    with comparison:  # at the price and the limits that were chosen below
        parameters = what_if_url.parameters(what_if)
        navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id, **parameters)
elif job_id:
    live_progress.show(opened, job_id)
elif not form.is_requested() and past_evaluations.has_any(opened):
    with action:
        if st.button("New evaluation", type="primary", icon=":material/add:", key="evaluate_new", shortcut="Alt+N"):
            navigation.go("evaluate", new="true")
    past_evaluations.show_past(opened)
else:
    outlook = st.container()
    sources = form.choose_variants(opened)
    workload = workload_form.choose(opened, sources[0] if sources else None)
    fields = form.choose_load() | form.choose_tasks(opened) | form.choose_token(sources)
    fields["anyway"] = quality_confirmation.confirm(opened, sources, "evaluate")
    sources = form.measured_sources(sources, fields)
    request = form.check(opened, sources, workload, fields)
    with outlook:
        form.show_outlook(opened, request, sources)
    with action:
        form.submit_button(opened, request)
    form.show_command(request, sources, ruined=bool(variants.floor_warnings(opened, sources)))
    past_evaluations.show_past(opened)
