"""The report as this page shows it: its limits, prices and imported results go into the file, all from its fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st
from pydantic import ValidationError

from app import compare_slo, goodput_view, imported_view
from backend.domain.costs import ApiPrice
from backend.domain.evaluation import Evaluation
from backend.domain.report_extras import WhatIf
from backend.domain.slo import Slo
from backend.service import Workspace, imported, prices, reports
from backend.service.evaluations import EvaluationView


def page(opened: Workspace, view: EvaluationView) -> Callable[[], bytes]:
    """Read the fields now; the file is written when it is asked for."""
    asked = what_if(opened, view)
    others = [result.id for result in imported.several(opened, imported_view.chosen_ids())]
    return lambda: reports.page(opened, view.id, asked, others)


def what_if(opened: Workspace, view: EvaluationView) -> WhatIf | None:
    """What the fields of cost and limits say; None where nothing was changed, or the address holds what cannot be."""
    hour, source = _hour(opened)
    inside, outside = _number("cost_api_in"), _number("cost_api_out")
    api = ApiPrice(per_million_input=inside or 0.0, per_million_output=outside or 0.0) if inside or outside else None
    percent = _number("cost_discount")
    stored = view.document.options
    try:
        found = WhatIf(
            limits=Slo(ttft_p95_ms=_number("cost_ttft"), tpot_p95_ms=_number("cost_tpot")),
            request_limits=_request_limits(view.document),
            per_hour=None if hour == stored.price_per_hour else hour, price_source=source,
            discount=None if percent is None or percent == stored.discount * 100 else percent / 100,
            api=api, requests_a_month=_number("cost_requests") or None, peak=_number("cost_peak") or 2.0,
        )  # fmt: skip
    except ValidationError:
        return None
    return None if found == WhatIf() else found


def _request_limits(document: Evaluation) -> dict[str, float]:
    """Of the sliders of goodput; one that is all the way to the right is no limit."""
    found = {}
    for metric, (key, _) in goodput_view.FIELDS.items():
        highest, value = goodput_view.largest(document, metric), _number(key)
        if highest is not None and value is not None and value < compare_slo.scale(highest)[0]:
            found[metric] = value
    return found


def _hour(opened: Workspace) -> tuple[float | None, str | None]:
    """Per hour and where that price is from: an instance of the list, or what was typed in."""
    wanted = _field("cost_instance")
    row = next((each for each in prices.listing(opened) if each.instance == wanted), None) if wanted else None
    if row is not None and row.usd_per_hour is not None:
        return row.usd_per_hour, f"USD, {row.instance} in {row.region}, on demand, as of {row.as_of}; {row.source_text}"
    return _number("cost_hour"), None


def _number(key: str) -> float | None:
    """None where the field is empty, or no number from 0 on."""
    try:
        value = float(_field(key))
    except (TypeError, ValueError):
        return None
    return value if 0 <= value < 1e15 else None


def _field(key: str) -> Any:
    """As it was left; before the fields are drawn for the first time, as the address has it."""
    return st.session_state[key] if key in st.session_state else st.query_params.get(key)
