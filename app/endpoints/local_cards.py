"""Draw the endpoints of this studio's machines as cards, and the form that adds one."""

from __future__ import annotations

import streamlit as st

from app import navigation, next_steps, shell
from app.formatting import UNKNOWN, message, plain
from app.playground import pair_choice
from app.serving import engine_select
from app.session import disabled_unless_allowed, owner_suffix
from backend.domain.jobs.endpoint_states import EndpointState
from backend.domain.roles import Action
from backend.present.endpoints import words
from backend.present.source_names import short_name
from backend.service import Workspace
from backend.service.jobs import artifacts
from backend.service.serving import local_endpoints, serve, traffic
from backend.service.serving.local_endpoints import LocalEndpoint
from backend.service.serving.serve import ServedVariant

ICONS = {
    EndpointState.LOADED: ":material/check_circle:",
    EndpointState.IDLE: ":material/bedtime:",
    EndpointState.FAILED: ":material/error:",
    EndpointState.STOPPED: ":material/stop_circle:",
}
WAITING = ":material/hourglass_top:"
LOG_TAIL = 20_000
"""Bytes of a log that a card shows."""
MOST_IDLE_MINUTES = 7 * 24 * 60.0


def show(opened: Workspace) -> int:
    """Draw a card for each endpoint, then the form that adds one. Return how many there are."""
    endpoints = local_endpoints.listing(opened)
    for endpoint in endpoints:
        with st.container(border=True, key=f"endpoints_card-local-{endpoint.name}"):
            _card(opened, endpoint)
    _show_form(opened, unfolded=not endpoints)
    return len(endpoints)


def _card(opened: Workspace, endpoint: LocalEndpoint) -> None:
    name = endpoint.name
    # 1. Name, and what can be done.
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{plain(name)}**{owner_suffix(opened, endpoint.owner)}", width="stretch")
        if endpoint.state is EndpointState.LOADED:
            navigation.link("playground", "Chat", ":material/chat:", original=endpoint.url)
        if endpoint.job is not None:
            navigation.link("job", "Job", ":material/work:", id=endpoint.job)
        _buttons(opened, endpoint)
    # 2. Its state, what it serves and what it did, live.
    shell.live(f"endpoint-{name}", lambda: _show_figures(opened, name), active=endpoint.state.answers)
    # 3. Code that asks it, and its logs.
    if endpoint.is_here:
        with st.expander(f"Client code for {plain(name)}"):
            next_steps.show_client(opened, _as_served(endpoint))
    with st.expander(f"Logs of {plain(name)}"):
        _show_logs(opened, name)


def _as_served(endpoint: LocalEndpoint) -> ServedVariant:
    """Return the endpoint as client code needs it."""
    return ServedVariant(
        source=endpoint.source,
        name=endpoint.name,
        url=endpoint.url,
        served_name=endpoint.name,
        ready_seconds=0.0,
        key_file=endpoint.key_file,
    )


def _buttons(opened: Workspace, endpoint: LocalEndpoint) -> None:
    """Draw Start or Stop, and Remove behind a question."""
    name, runs = endpoint.name, endpoint.state.answers
    action, label = (Action.STOP_ENDPOINT, "Stop") if runs else (Action.START_ENDPOINT, "Start")
    options = disabled_unless_allowed(opened, action, endpoint.owner)
    if endpoint.state is EndpointState.STOPPING:
        options = {"disabled": True, "help": "It still stops."}
    icon = ":material/stop:" if runs else ":material/play_arrow:"
    if st.button(label, icon=icon, key=f"endpoints_switch-{name}", **options):
        with shell.errors_inline():
            (local_endpoints.stop if runs else local_endpoints.start)(opened, name)
            st.rerun()
    with st.popover("Remove", icon=":material/delete:", key=f"endpoints_ask-remove-{name}"):
        st.markdown("Stop this endpoint and forget it? What it serves stays, and you can serve it again.")
        refused = disabled_unless_allowed(opened, Action.REMOVE_ENDPOINT, endpoint.owner)
        if st.button("Yes, remove it", key=f"endpoints_remove-{name}", **refused):
            with shell.errors_inline():
                local_endpoints.remove(opened, name)
                st.rerun()


def _show_figures(opened: Workspace, name: str) -> str:
    """Draw the state, the address, and the figures since it was started. Return the state."""
    # 1. State and address.
    endpoint = local_endpoints.find(opened, name)
    if endpoint is None:
        return "removed"
    icon = ICONS.get(endpoint.state, WAITING)
    sentence = words.state_sentence(endpoint.state, endpoint.reason)
    if endpoint.state is EndpointState.FAILED:
        st.error(message(sentence), icon=icon)
    else:
        st.markdown(f"{icon} {message(sentence)}")
    idle = "never unloaded" if endpoint.keep_loaded else f"unloaded after {endpoint.idle_minutes:g} idle minutes"
    served = f"{plain(short_name(endpoint.source))} by {plain(endpoint.engine)} at `{endpoint.url}`"
    where = "" if endpoint.is_here else f" on {plain(endpoint.host)}"
    st.markdown(f"{served}{where} · {idle}")
    # 2. Traffic and counts.
    rates = traffic.Traffic()
    if endpoint.job is not None and endpoint.state.answers:
        rates = traffic.read_traffic(opened, endpoint.job).get(endpoint.source, rates)
    figures = [
        ("Output tokens/s", f"{rates.tokens_per_s:,.1f}", "last 10 s"),
        ("Requests", f"{endpoint.requests:,}", f"{endpoint.failed_requests:,} failed"),
        ("Loads", f"{endpoint.loads:,}", f"{endpoint.restarts:,} restarts after a crash"),
        ("Cost", UNKNOWN if endpoint.cost is None else f"{endpoint.cost:,.2f}", "of the machine since the start"),
    ]
    shell.show_figures(figures)
    if endpoint.cost is None:
        st.caption(message(words.cost(None, None)))
    return str(endpoint.state)


def _show_logs(opened: Workspace, name: str) -> None:
    """Draw the last lines of its worker and server, and of its requests."""
    log, requests = st.tabs(["Worker and server", "Requests"])
    with log, st.container(height=240):
        _show_text(local_endpoints.logs(opened, name, tail_bytes=LOG_TAIL), "Nothing is logged yet.")
    with requests, st.container(height=240):
        _show_text(local_endpoints.request_log(opened, name, tail_bytes=LOG_TAIL), "No request yet.")


def _show_text(text: str, otherwise: str) -> None:
    if text:
        st.code(text, language=None, wrap_lines=True)
    else:
        st.caption(otherwise)


def _show_form(opened: Workspace, *, unfolded: bool) -> None:
    """Draw the form that adds an endpoint, unfolded where there is none."""
    with st.expander("Serve a model", expanded=unfolded, icon=":material/add:"):
        # 1. What is served, and by which engine.
        servable = {each.source: each.label for each in pair_choice.find_servable(opened, artifacts.variants(opened))}
        chosen = st.selectbox(
            "Model or artifact", list(servable), format_func=lambda source: servable[source], key="endpoints_source"
        )
        if chosen is None:
            st.caption("There is no model yet: import one.")
            return
        source = _choose_engine(opened, chosen)
        # 2. Its name, and when it is unloaded.
        left, right = st.columns(2)
        name = left.text_input(
            "Name",
            max_chars=64,
            key="endpoints_name",
            placeholder="as the model",
            help="Clients send it as `model`.",
        )
        idle = right.number_input(
            "Idle minutes",
            min_value=0.1,
            max_value=MOST_IDLE_MINUTES,
            value=serve.IDLE_MINUTES,
            key="endpoints_idle",
            help="The model is unloaded after so long without requests; the next request loads it again.",
        )
        keep = st.toggle("Keep loaded", key="endpoints_keep", help="Never unload it.")
        # 3. Add it.
        refused = disabled_unless_allowed(opened, Action.ADD_ENDPOINT)
        if st.button("Serve", type="primary", icon=":material/dns:", key="endpoints_add", **refused):
            with shell.errors_inline():
                added = local_endpoints.add(
                    opened, source, name=name or None, idle_minutes=float(idle), keep_loaded=keep
                )
                st.toast(plain(f"{added.name} is starting at {added.url}."), icon=":material/dns:")
                st.rerun()


def _choose_engine(opened: Workspace, chosen: str) -> str:
    """Draw the engine, where several can serve the model. Return the source on it."""
    offer = engine_select.find_offer(opened, chosen)
    if offer is None:
        return chosen
    key = f"endpoints_on-{chosen}"
    source: str = st.session_state.get(key, chosen)

    def write(named: str) -> None:
        st.session_state[key] = named

    engine_select.draw(offer, source, key="endpoints_engine", write=write, label="Engine")
    return source
