"""Evaluate: how fast, how good, how dear, under my load?"""

import streamlit as st

from app import evaluate_form, evaluate_live, evaluation_view, navigation, shell
from app.session import workspace
from app.words import plain
from backend.domain.errors import NotFound
from backend.service import evaluations

opened = workspace()
head = st.container(horizontal=True, vertical_alignment="bottom")
head.title("Evaluate", width="stretch")
action = head.container(width="content")
wanted, job_id = st.query_params.get("id"), st.query_params.get("job")

if wanted:
    try:
        view = evaluations.show(opened, wanted)
    except NotFound:
        shell.refuse(
            f"There is no evaluation {plain(wanted)} here: it may belong to another home.", "evaluate", "Measure something"
        )
    st.subheader(plain(view.title), help=view.id)
    with action:
        navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)
        sources = ",".join(result.variant.source for result in view.document.variants)
        navigation.link("evaluate", "Measure again", ":material/refresh:", variants=sources)
    evaluation_view.show(opened, view)
elif job_id:
    evaluate_live.show(opened, job_id)
else:
    sources = evaluate_form.variants(opened)
    workload = evaluate_form.workload(opened)
    fields = evaluate_form.load()
    asked = evaluate_form.ask(opened, sources, workload, fields)
    if asked.spec:
        st.caption(evaluate_form.extent(asked.spec))
    elif sources:
        st.error(asked.obstacle, icon=":material/block:")
    else:
        st.info("The verdict, the charts and the table will stand here. Choose the variants to measure.", icon=":material/info:")
    with action:
        evaluate_form.submit_button(opened, asked)
