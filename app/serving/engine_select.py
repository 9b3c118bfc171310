"""A field for the engine that serves a model or an artifact: those that can, and why the others cannot."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.formatting import message, plain
from backend.domain.errors import WhetstoneError
from backend.domain.recipe.serving.source_settings import name_settings, parse_source
from backend.domain.recipe.serving_engines import AUTO, ENGINES, EngineChoice
from backend.service import Workspace
from backend.service.models import engine_options, variants
from backend.service.models.engine_options import EngineOffer


def find_offer(opened: Workspace, source: str, *, streams: int = 1) -> EngineOffer | None:
    """Return the engines for a source; None for an address and for what cannot be resolved, which is said elsewhere."""
    if source.startswith(("http://", "https://", "sagemaker:")):
        return None
    try:
        return engine_options.offer(opened, source, streams=streams)
    except WhetstoneError:
        return None


def draw(
    offer: EngineOffer, source: str, *, key: str, write: Callable[[str], None], label: str = "Engine", says: bool = True
) -> None:
    """Draw the field; a change calls `write` with the source and its new engine.

    With one engine there is a line in place of the field, whose help says why not the others. `says` is False where the
    page says the reasons elsewhere.
    """
    # 1. One engine: a line, with why not the others.
    choices, refusals = offer.choices, refusal_sentences(offer)
    if len(choices) < 2:
        served = f"Served by {offer.label(offer.default)}."
        if says and choices:
            st.caption(message(served), help=message(" ".join(refusals)) if refusals else None)
        elif says:
            st.caption(message(" ".join(refusals)))
        return
    # 2. The field, at the engine that the source names.
    current = current_engine(offer, source)
    if st.session_state.get(key) != current:
        st.session_state[key] = current
    st.selectbox(
        label,
        choices,
        key=key,
        format_func=offer.label,
        on_change=lambda: write(on_engine(offer, source, st.session_state[key])),
        help=message(" ".join(refusals)) if refusals else "The engine that serves it on this machine.",
    )
    # 3. Why the automatic choice is what it is.
    if says and current == AUTO and offer.automatic:
        st.caption(message(offer.automatic))


def current_engine(offer: EngineOffer, source: str) -> EngineChoice:
    """Return the engine that a source names, else the one that it has by itself."""
    named = variants.split_engine(source)[1] or offer.default
    return named if named in offer.choices else offer.choices[0]


def on_engine(offer: EngineOffer, source: str, engine: EngineChoice) -> str:
    """Return the source on that engine; its own engine is not written."""
    without_engine = variants.split_engine(source)[0]
    return without_engine if engine == offer.default else variants.with_engine(without_engine, engine)


def refusal_sentences(offer: EngineOffer) -> list[str]:
    """Return why each other engine cannot serve it."""
    return [f"Not by {ENGINES[engine].title}: {sentence}" for engine, sentence in offer.refusals.items()]


def named_on(name: str, source: str) -> str:
    """Return a name with the engine and settings that its source names: `starter on llama.cpp, threads 2`.

    Raises RequestError for an engine or a setting that does not exist.
    """
    parts = parse_source(source)
    settings = plain(name_settings(parts.settings))
    if parts.engine is None:
        return f"{name}{settings}"
    engine = ", automatic engine" if parts.engine == AUTO else f" on {plain(ENGINES[parts.engine].title)}"
    return f"{name}{engine}{settings}"
