"""Build the report as the page shows it, with the limits, prices and imported results of its fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from app import url_parameters
from app.compare import slo_sliders, what_if_url
from app.navigation import page_key
from app.results import goodput
from app.results import imported_results as imported_view
from backend.domain.evaluation.document import Evaluation
from backend.domain.what_if.costs import WhatIf
from backend.service import Workspace
from backend.service.evaluations import imported_results, reports
from backend.service.evaluations.evaluations import EvaluationView


def report_writer(opened: Workspace, view: EvaluationView, what_if: WhatIf) -> Callable[[], bytes]:
    """Read the fields now. Return a function that writes the report. `what_if` is what the cost fields say."""
    changed = report_what_if(view.document, what_if)
    others = [result.id for result in imported_results.find_several(opened, imported_view.chosen_ids())]
    return lambda: reports.write_page(opened, view.id, changed, others)


def report_what_if(document: Evaluation, what_if: WhatIf) -> WhatIf | None:
    """Return the what-if with the limits of single requests; None if nothing was changed."""
    complete = what_if.model_copy(update={"request_limits": _request_limits(document)})
    return None if complete == WhatIf() else complete


def _request_limits(document: Evaluation) -> dict[str, float]:
    """Return the limits of the goodput sliders; one that is fully to the right is no limit."""
    limits = {}
    for metric, (key, _) in goodput.FIELDS.items():
        highest, value = goodput.highest_latency(document, metric), what_if_url.parse_number(_field_value(key), 1e15)
        if highest is not None and value is not None and value < slo_sliders.slider_scale(highest)[0]:
            limits[metric] = value
    return limits


def _field_value(key: str) -> Any:
    """Return the value of a field; before it is drawn for the first time, that of the address."""
    value = st.session_state.get(page_key(key), url_parameters.query().get(page_key(key)))
    return url_parameters.query().get(key) if value is None else value
