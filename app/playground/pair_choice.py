"""Choose the two models of the playground: known models, artifacts, or a URL. The pair is in the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from app import url_parameters
from app.formatting import local_time, message, plain, size
from app.serving import engine_select
from app.summaries import model_source as origin
from app.url_parameters import NOTHING
from backend.domain.figures import code
from backend.domain.recipe.serving.source_settings import remove_settings
from backend.domain.recipe.serving_engines import ENGINE
from backend.present.source_names import short_name
from backend.service import Workspace
from backend.service.jobs import artifacts
from backend.service.jobs.artifacts import ArtifactView
from backend.service.models import models
from backend.service.serving.serve import is_address

TITLES = {"original": "Original", "optimized": "Optimized"}
URL = "url"
PLACEHOLDER = "http://HOST:PORT"


Pair = Sequence[tuple[str, str]]
"""(name, source) of one or two models."""


@dataclass(frozen=True)
class Servable:
    """Something that can be served. `parent` is the source of the model that it is or was made from."""

    source: str
    label: str
    name: str
    parent: str


def find_servable(opened: Workspace, artifact_views: Sequence[ArtifactView]) -> list[Servable]:
    """Return each present model, followed by its artifacts in the given order. A demonstration has models whose files
    are elsewhere, and lists those that something was made from."""
    servable: list[Servable] = []
    parents = {origin(view.manifest.parent) for view in artifact_views} if opened.read_only else set[str]()
    for known_model in models.list_known(opened):
        if known_model.present or known_model.source in parents:
            name = short_name(known_model.card.id)
            label = f"{name} · original · {size(known_model.card.weights_bytes)}"
            servable.append(Servable(known_model.source, label, name, known_model.source))
        for view in artifact_views:
            if origin(view.manifest.parent) == known_model.source:
                made_at = local_time(view.created_at)[:16]
                label = f"{view.recipe} of {short_name(view.model)} · {size(view.bytes)} · {view.id} · {made_at}"
                servable.append(Servable(view.id, label, f"{view.recipe} ({view.id})", known_model.source))
    return servable


def partners(servable: Sequence[Servable], first: str) -> list[Servable]:
    """Return what fits beside `first`: artifacts of the same model, then the model; everything if `first` is a URL."""
    chosen = next((choice for choice in servable if choice.source == first), None)
    if chosen is None:
        return list(servable)
    family = [choice for choice in servable if choice.parent == chosen.parent and choice.source != first]
    return sorted(family, key=lambda choice: choice.source == choice.parent)


def suggestion(servable: Sequence[Servable], artifact_ids: Sequence[str]) -> tuple[str, str]:
    """Return the newest artifact (first of `artifact_ids`) and its model; the first model alone if there is none."""
    for artifact in artifact_ids:
        newest = next((choice for choice in servable if choice.source == artifact), None)
        parent = next((choice for choice in servable if newest and choice.parent == newest.parent), None)
        if newest and parent and parent is not newest:
            return parent.source, newest.source
    return (servable[0].source if servable else URL), NOTHING


def choose_pair(opened: Workspace) -> list[tuple[str, str]]:
    """Return the chosen (name, source) of one or two; empty while a URL is missing."""
    # 1. What there is, and the pair of the address or the suggested one.
    artifact_views = artifacts.variants(opened)  # newest first
    servable = find_servable(opened, artifact_views)
    defaults = suggestion(servable, [view.id for view in artifact_views])
    left, right = st.columns(2)
    # 2. The first side, then what fits beside it.
    with left:
        first = _choose_side(opened, "original", servable, defaults[0], servable)
    with right:
        second_options = partners(servable, remove_settings(first))
        second_options += _itself_elsewhere(opened, servable, first)
        second = _choose_side(
            opened, "optimized", second_options, defaults[1] if first == defaults[0] else "", servable
        )
    if first and first == second:
        st.info("Both sides are the same: choose another engine for one of them.", icon=":material/info:")
        return []
    # 3. Their names, with the engine where it was chosen.
    names = {choice.source: choice.name for choice in servable}
    return [(_name(names, source), source) for source in (first, second) if source]


def _itself_elsewhere(opened: Workspace, servable: Sequence[Servable], first: str) -> list[Servable]:
    """Return the first side's own model, if another engine can serve it too."""
    source = remove_settings(first)
    offer = engine_select.find_offer(opened, source) if source else None
    if offer is None or len(offer.choices) < 2:
        return []
    return [choice for choice in servable if choice.source == source]


def _name(names: dict[str, str], source: str) -> str:
    return short_name(source) if is_address(source) else engine_select.named_on(names[remove_settings(source)], source)


def _choose_side(
    opened: Workspace, side: str, offered: Sequence[Servable], default: str, known: Sequence[Servable]
) -> str:
    """Draw one selector with its engine, and the field of its URL. Return the source, empty if there is none."""
    # 1. The options and the selected one.
    labels = {choice.source: choice.label for choice in offered}
    others = {URL: "A URL of a running server", **({NOTHING: "None: use one model"} if side == "optimized" else {})}
    options = [*labels, *others]
    written = url_parameters.query().get(side)
    requested = written if written is None or is_address(written) else remove_settings(written)
    selected = _selected_option(
        requested, options, default or next(iter(labels), NOTHING if side == "optimized" else URL)
    )
    # 2. The field.
    key = f"playground_{side}"
    if st.session_state.get(key) != selected:
        st.session_state[key] = selected
    st.selectbox(
        TITLES[side],
        options,
        key=key,
        format_func=lambda option: (labels | others)[option],
        on_change=_write,
        args=(side, key),
    )
    # 3. Name an option of the address that is not here.
    if requested and requested not in options and not is_address(requested):
        elsewhere = requested in {choice.source for choice in known}
        why = "is of another model" if elsewhere else "is not known here"
        st.warning(f"`{plain(requested[:60])}` {why}: something else is chosen instead.", icon=":material/help:")
    # 4. The URL, or the engine.
    if selected == URL:
        return _choose_url(side, requested)
    return "" if selected == NOTHING else _choose_engine(opened, side, selected, written)


def _choose_engine(opened: Workspace, side: str, selected: str, written: str | None) -> str:
    """Draw the engine of one side. Return the source on the engine that the address names for it."""
    # 1. The engine of the address, if it is one and can serve this.
    offer = engine_select.find_offer(opened, selected)
    if offer is None:
        return selected
    source = written if written and remove_settings(written) == selected else selected
    engine = source.partition(ENGINE)[2].partition("@")[0] or None
    if engine is not None and engine not in offer.choices:
        refusal = next((offer.refusals[name] for name in offer.refusals if name == engine), "There is no such engine.")
        st.warning(message(f"{code(engine[:40])}: {refusal}"), icon=":material/help:")
        source = selected
    # 2. The field.
    engine_select.draw(
        offer,
        source,
        key=f"playground_engine_{side}",
        write=lambda named: url_parameters.query().update({side: named}),
        label=f"Engine of the {TITLES[side].lower()}",
    )
    return source


def _selected_option(requested: str | None, options: Sequence[str], default: str) -> str:
    """Return the option of the address, else the default."""
    if requested and is_address(requested):
        return URL
    if requested in options:
        return str(requested)
    return default if default in options else options[0]


def _choose_url(side: str, requested: str | None) -> str:
    # The address of the page wins over what was typed before.
    key = f"playground_url_{side}"
    current = requested if requested and is_address(requested) else ""
    if st.session_state.get(key) != current and current:
        st.session_state[key] = current
    # Draw the field.
    st.text_input(
        f"{TITLES[side]} URL",
        key=key,
        placeholder=PLACEHOLDER,
        on_change=_write_url,
        args=(side, key),
        help="An OpenAI-compatible server that is running, or an endpoint at SageMaker: sagemaker:NAME@REGION.",
    )
    # Refuse what is not an address.
    address = str(st.session_state[key]).strip()
    if address and not is_address(address):
        st.error(f"This is not an address: give {PLACEHOLDER}, or sagemaker:NAME@REGION.", icon=":material/error:")
        return ""
    return address


def write_pair(pair: Pair) -> None:
    """Write the pair into the address, also if it is the suggested one."""
    url_parameters.query().update(url_parameters.playground_parameters([source for _, source in pair]))


def _write(side: str, key: str) -> None:
    url_parameters.query()[side] = st.session_state[key]


def _write_url(side: str, key: str) -> None:
    address = str(st.session_state[key]).strip()
    url_parameters.query()[side] = address if is_address(address) else URL
