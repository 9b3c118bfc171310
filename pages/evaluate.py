"""Evaluate: how fast, how good, how dear, under my load?"""

import streamlit as st

from app import (
    endpoint_form,
    evaluate_form,
    evaluate_live,
    evaluation_view,
    imported_view,
    navigation,
    shell,
    tasks_field,
    workload_form,
)
from app.session import workspace
from app.words import plain, short
from backend.domain.errors import NotFound
from backend.service import evaluations

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Evaluate", width="stretch")
action = head.container(width="content", horizontal=True, vertical_alignment="center")
wanted, job_id = st.query_params.get("id"), st.query_params.get("job")

if wanted:
    try:
        view = evaluations.show(opened, wanted)
    except NotFound:
        shell.refuse(
            f"There is no evaluation {plain(short(wanted, 60))} here: it may belong to another home.",
            "evaluate",
            "Measure something",
        )
    st.subheader(plain(view.title), help=view.id)
    with action:
        navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)
        navigation.link("evaluate", "Measure again", ":material/refresh:", **evaluate_form.again(view.document))
    evaluation_view.show(opened, view)
    imported_view.show(opened, view.document)
elif job_id:
    evaluate_live.show(opened, job_id)
else:
    outlook = st.container()
    sources = evaluate_form.variants(opened)
    workload = workload_form.choose(opened, sources[0] if sources else None)
    fields = evaluate_form.load() | tasks_field.choose(opened) | endpoint_form.bearer(sources)
    sources = evaluate_form.measured(sources, fields)
    asked = evaluate_form.ask(opened, sources, workload, fields)
    with outlook:
        evaluate_form.outlook(opened, asked, sources)
    with action:
        evaluate_form.submit_button(opened, asked)
    evaluate_form.command(asked, sources)
