"""The engines of an evaluation's variants: a field for each that several can serve, and the same model on another."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import navigation
from app.formatting import plain
from app.serving import engine_select
from backend.domain.recipe.serving_engines import AUTO
from backend.service import Workspace
from backend.service.models import variants
from backend.service.models.engine_options import EngineOffer

A_ROW = 3
"""Fields beside each other."""


def choose_engines(opened: Workspace, sources: Sequence[str]) -> None:
    """Draw a field for each variant that several engines can serve; a change is written into the address."""
    # 1. The variants with a choice.
    offers = {source: engine_select.find_offer(opened, source) for source in sources}
    several = {source: offer for source, offer in offers.items() if offer is not None and len(offer.choices) > 1}
    if not several:
        return
    # 2. A column for each.
    columns = st.columns(A_ROW)
    models = [variants.split_engine(source)[0] for source in several]
    for number, (source, offer) in enumerate(several.items()):
        with columns[number % A_ROW]:
            engine_select.draw(
                offer,
                source,
                key=f"evaluate_engine_{source}",
                label=f"Engine of {plain(offer.name)}",
                says=False,
                write=lambda named, source=source: _replace(sources, source, named),  # type: ignore[misc]
            )
            if models[number] not in models[:number]:
                _offer_another(offer, source, sources)


def _offer_another(offer: EngineOffer, source: str, sources: Sequence[str]) -> None:
    """Draw a button for each engine on which the same model is not measured yet."""
    for engine in offer.choices:
        other = engine_select.on_engine(offer, source, engine)
        if engine != AUTO and other not in sources and engine != engine_select.current_engine(offer, source):
            st.button(
                f"Measure it on {offer.label(engine)} too",
                type="tertiary",
                icon=":material/add:",
                key=f"evaluate_also_{other}",
                on_click=write,
                args=([*sources, other],),
            )


def _replace(sources: Sequence[str], source: str, named: str) -> None:
    write([named if other == source else other for other in sources])


def write(sources: Sequence[str]) -> None:
    """Make these the variants of the address."""
    navigation.set_parameter("variants", list(dict.fromkeys(sources)))
