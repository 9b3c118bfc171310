"""Choose the evaluations to compare and their prices. All of it is in the URL, so that the page can be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import streamlit as st

from app import navigation, url_parameters
from app.compare import side_by_side, what_if_url
from app.formatting import local_time, plain
from backend.domain.errors import NotFound
from backend.domain.evaluation.document import Evaluation
from backend.domain.what_if import costs
from backend.domain.what_if.costs import WhatIf
from backend.present.source_names import evaluation_name
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationTitle, EvaluationView

OFFERED = 200
MINUTES = len("2026-11-23 14:05")


def choose(opened: Workspace) -> list[EvaluationView]:
    """Draw the selection. An unknown id in the URL is named, and the others are shown."""
    # 1. Read the evaluations of the address; without any in it, the latest.
    titles = _labels(_offered(opened))
    requested = navigation.distinct_values(url_parameters.query().get_all("ids"))
    if not requested and not any(url_parameters.query().get(name) for name in ("presets", "imported")):
        requested = [view.id for view in evaluations.listing(opened, limit=1)]
        navigation.set_parameter("ids", requested)
    views, unknown = [], []
    for evaluation_id in requested[: side_by_side.MOST]:
        try:
            views.append(evaluations.show(opened, evaluation_id))
        except NotFound:
            unknown.append(evaluation_id)
    # 2. Name those that are not here.
    for evaluation_id in unknown:
        st.error(
            f"There is no evaluation {plain(evaluation_id)} here: it may belong to another home.",
            icon=":material/error:",
        )
    if len(requested) > side_by_side.MOST:
        st.warning(f"Only the first {side_by_side.MOST} evaluations are shown.", icon=":material/warning:")
    # 3. The field.
    shown_ids = [view.id for view in views]
    if not titles and not shown_ids:
        if not url_parameters.query().get("presets"):
            st.info("No evaluations yet. They appear here side by side.", icon=":material/info:")
        return []
    navigation.multiselect(
        "Evaluations",
        [*titles, *shown_ids],
        shown_ids,
        name="ids",
        key="compare_ids",
        forgets="prices",
        max_selections=side_by_side.MOST,
        format_func=lambda name: titles.get(name, name),
        placeholder="Choose one or more",
    )
    return views


def _labels(titles: Sequence[EvaluationTitle]) -> dict[str, str]:
    """Return a label of each evaluation by its id: short name and time, with the id where two are alike."""
    labels = {title.id: f"{evaluation_name(title.title)}, {local_time(title.created_at)[:MINUTES]}" for title in titles}
    shared = Counter(labels.values())
    return {key: f"{label} ({key})" if shared[label] > 1 else label for key, label in labels.items()}


def _offered(opened: Workspace) -> list[EvaluationTitle]:
    """Return the newest evaluations; if there are more than a list can hold, those that match the search."""
    newest = evaluations.list_titles(opened, limit=OFFERED)
    if len(newest) < OFFERED:
        return newest
    words = st.text_input(
        f"Find among all evaluations (the newest {OFFERED} are offered)",
        key="compare_find",
        type="search",
        max_chars=80,
    )
    return evaluations.list_titles(opened, words=words, limit=OFFERED) if words else newest


def what_if(views: list[EvaluationView]) -> list[tuple[WhatIf, Evaluation]]:
    """Draw the prices. Return the what-if of each evaluation and its document at that price."""
    # 1. A price per evaluation and one discount.
    st.markdown("**What if the price per hour were different?** Prices are recomputed from the stored measurements.")
    typed_prices = side_by_side.parse_prices(url_parameters.query().get("prices", ""), len(views))
    columns = st.columns(min(4, len(views) + 1))
    prices = []
    ends = [f", {letter}" for letter in side_by_side.LETTERS] if len(views) > 1 else [""]
    for index, (view, end, value) in enumerate(zip(views, ends, typed_prices, strict=False)):
        stored = view.document.options.price_per_hour
        with columns[index % len(columns)]:
            prices.append(
                st.number_input(
                    f"Price per hour (USD){end}",
                    min_value=0.0,
                    max_value=1e12,
                    value=value if value is not None else stored,
                    format="%.4f",
                    key=what_if_url.field_key(f"compare_price_{view.id}"),
                    placeholder="none",
                    help=(f"{plain(view.title)}. As measured: {'none' if stored is None else stored}."),
                )
            )
    with columns[len(views) % len(columns)]:
        discount = st.number_input(
            "Discount (%)",
            0.0,
            side_by_side.MOST_DISCOUNT,
            _discount(views),
            key=what_if_url.field_key("compare_discount"),
            help="Off every hourly price.",
        )
    # 2. Write them into the address and recompute.
    _write_prices(views, prices, discount)
    return [_priced(view.document, price, discount) for view, price in zip(views, prices, strict=True)]


def _priced(document: Evaluation, price: float | None, percent: float) -> tuple[WhatIf, Evaluation]:
    stored = document.options
    changes = WhatIf(
        per_hour=None if price == stored.price_per_hour else price,
        discount=None if percent == stored.discount * 100 else percent / 100,
    )
    return changes, costs.repriced(document, changes)


def _discount(views: list[EvaluationView]) -> float:
    """Return the discount of the URL, 0 if it is no number; without one, that of the first evaluation."""
    text = url_parameters.query().get("discount")
    return (
        _stored_discount(views) if text is None else what_if_url.parse_number(text, side_by_side.MOST_DISCOUNT) or 0.0
    )


def _stored_discount(views: list[EvaluationView]) -> float:
    return min(side_by_side.MOST_DISCOUNT, round(views[0].document.options.discount * 100, 6))


def _write_prices(views: list[EvaluationView], prices: list[float | None], discount: float) -> None:
    stored = [view.document.options.price_per_hour for view in views]
    words = ",".join(
        "" if price is None or price == own else f"{price:g}" for price, own in zip(prices, stored, strict=True)
    )
    what_if_url.write("prices", words if words.strip(",") else "")
    own = _stored_discount(views)
    what_if_url.write("discount", "" if discount == own else f"{discount:g}")
