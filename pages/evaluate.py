"""Evaluate: how fast, how good, how dear, under my load?"""

import streamlit as st

from app import navigation, quality_confirmation, shell
from app.evaluate import endpoint_token, form, live_progress, tasks_field
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
wanted, job_id = st.query_params.get("id"), st.query_params.get("job")

if wanted:
    try:
        view = evaluations.show(opened, wanted)
    except NotFound:
        shell.refuse_page(
            f"There is no evaluation {plain(shorten(wanted, 60))} here: it may belong to another home.",
            "evaluate",
            "Measure something",
        )
    st.subheader(plain(view.title), help=view.id)
    with action:
        navigation.link("evaluate", "All evaluations", ":material/history:")
        navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id)
        navigation.link("evaluate", "Measure again", ":material/refresh:", **form.repeat_parameters(view.document))
    evaluation_page.show(opened, view)
elif job_id:
    live_progress.show(opened, job_id)
else:
    outlook = st.container()
    sources = form.choose_variants(opened)
    workload = workload_form.choose(opened, sources[0] if sources else None)
    fields = form.choose_load() | tasks_field.choose(opened) | endpoint_token.choose(sources)
    fields["anyway"] = quality_confirmation.confirm(opened, sources, "evaluate")
    sources = form.measured_sources(sources, fields)
    asked = form.check(opened, sources, workload, fields)
    with outlook:
        form.show_outlook(opened, asked, sources)
    with action:
        form.submit_button(opened, asked)
    form.show_command(asked, sources, ruined=bool(variants.floor_warnings(opened, sources)))
    past_evaluations.show_past(opened)
