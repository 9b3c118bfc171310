"""Draw what is served as cards: servers of this machine by their jobs, SageMaker endpoints as AWS lists them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import streamlit as st

from app import navigation, next_steps, shell, url_parameters
from app.endpoints import local_cards, update_form
from app.formatting import UNKNOWN, ago, message, plain
from app.jobs.cards import cancel_button
from app.jobs.job_text import headline
from app.session import disabled_unless_allowed, owner_suffix
from backend.domain.jobs.jobs import JobKind
from backend.domain.machine import price_list
from backend.domain.roles import Action
from backend.present import serve_command
from backend.present.words import endpoints as words
from backend.service import Workspace
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.artifacts import ArtifactView
from backend.service.machines import prices
from backend.service.serving import endpoints, serve, traffic
from backend.service.serving.endpoints import EndpointView
from backend.service.serving.serve import ServedVariant

DEPLOY = "whetstone deploy ARTIFACT --instance ml.g6.12xlarge --role ROLE_ARN --bucket BUCKET --dry-run"
ICONS = {"InService": ":material/check_circle:", "Failed": ":material/error:", "Deleting": ":material/delete:"}
LISTING = "endpoints_held"
"""Session key: the last answer of AWS and its time."""


def show_local(opened: Workspace) -> None:
    """Draw the endpoints of this machine, then the active serve jobs, which end when nobody uses them."""
    endpoints = local_cards.show(opened)
    # A card for each serve job: its state and buttons, then an address for each variant.
    active = [job for job in jobs.active(opened) if job.kind == JobKind.SERVE]
    for job in active:
        with st.container(border=True):
            served = serve.endpoints(opened, job.id)
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(headline(job), width="stretch")
                pair = url_parameters.playground_parameters(serve.served_sources(opened, job.id))
                navigation.link("playground", "Chat", ":material/chat:", **pair)
                navigation.link("job", "Job and log", ":material/work:", id=job.id)
                cancel_button(opened, job)
            for variant in served:
                st.markdown(next_steps.server_line(opened, variant))
                _show_traffic(opened, job.id, variant)
                with st.expander(f"Client code for {plain(variant.name)}"):
                    next_steps.show_client(opened, variant)
    # One address for all; without a server, say where to start one.
    if active or endpoints:
        st.caption("`whetstone gateway` gives all of them one address, with keys, limits and metrics.")
    else:
        st.caption("No server runs on this machine. The Playground starts servers for a chat.")
        navigation.link("playground", "Playground", ":material/chat:")


def _show_traffic(opened: Workspace, job_id: str, variant: ServedVariant) -> None:
    """Draw what a server of this machine has done, every two seconds: tokens/s with its last two minutes, and tokens
    since it started."""

    def draw() -> None:
        served = traffic.read_traffic(opened, job_id).get(variant.source, traffic.Traffic())
        with st.container(horizontal=True):
            st.metric(
                "Output tokens/s",
                f"{served.tokens_per_s:,.1f}",
                border=True,
                width=220,
                chart_data=served.rates or None,
                chart_type="area",
                help=f"Mean of the last {2 * traffic.SLOT_S} seconds; the line shows the last two minutes.",
            )
            st.metric("Output tokens", f"{served.generated_tokens:,}", border=True, width=160)
            st.metric("Prompt tokens", f"{served.prompt_tokens:,}", border=True, width=160)

    shell.live(f"traffic-{job_id}-{variant.source}", draw, active=True)


def show_sagemaker(opened: Workspace) -> None:
    """Draw the endpoints that Whetstone made in the region of the environment, after asking AWS."""
    # 1. Credentials are needed.
    if lacking := prices.missing_credentials():
        st.caption(message(f"There are no AWS credentials here: {lacking}. Then this lists what Whetstone deployed."))
        return
    # 2. Ask AWS, once per session or on request.
    if st.button("Ask AWS again", key="endpoints_ask", icon=":material/refresh:"):
        st.session_state.pop(LISTING, None)
    if LISTING not in st.session_state:
        with shell.errors_inline(), st.spinner("Asking AWS"):
            st.session_state[LISTING] = (endpoints.listing(opened), datetime.now(UTC))
    if LISTING not in st.session_state:
        return
    # 3. An empty list shows how to deploy.
    deployed, listed_at = st.session_state[LISTING]
    if not deployed:
        st.markdown(
            "Whetstone runs no endpoint there, so there is no cost. This command prints what a deployment would "
            "request from AWS:"
        )
        st.code(DEPLOY, language="bash")
        return
    # 4. Totals, then a card per endpoint.
    demand = f"on demand{price_list.discount_text(opened.settings.discount)}"
    hour = sum(endpoint.usd_per_hour or 0 for endpoint in deployed)
    so_far = sum(endpoint.usd_so_far or 0 for endpoint in deployed)
    served = [endpoint.traffic.hour.requests for endpoint in deployed if endpoint.traffic is not None]
    shell.show_figures(
        [
            ("Endpoints", str(len(deployed)), f"updated {ago(listed_at)}"),
            ("An hour", f"{hour:,.2f} USD", demand),
            ("So far", f"{so_far:,.2f} USD", "at the instances that run now"),
            ("Requests", f"{sum(served):,}" if served else UNKNOWN, "in the last hour"),
        ]
    )
    made_artifacts = artifacts.listing(opened)
    for endpoint in deployed:
        _card(opened, endpoint, made_artifacts)


def _card(opened: Workspace, endpoint: EndpointView, made_artifacts: Sequence[ArtifactView]) -> None:
    # State, name and buttons.
    with st.container(border=True, key=f"endpoints_card-{endpoint.id}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            icon = ICONS.get(endpoint.state, ":material/hourglass_top:")
            st.markdown(
                f"{icon} **{plain(endpoint.id)}** · {plain(endpoint.state)}"
                f"{owner_suffix(opened, endpoint.owner or '')}",
                width="stretch",
            )
            prove = _buttons(opened, endpoint, made_artifacts)
        if prove:
            update_form.check_served(opened, endpoint)
        # What is wrong: the reason of AWS, or no requests.
        if endpoint.reason:
            st.error(message(endpoint.reason), icon=":material/error:")
        if endpoint.idle:
            st.warning(
                "Idle: no requests in the time that its alarm watches. It still costs money.",
                icon=":material/bedtime:",
            )
        # What runs where, and what it costs.
        hour = words.hour(endpoint.usd_per_hour, endpoint.discount)
        so_far = "" if endpoint.usd_so_far is None else f", about {endpoint.usd_so_far:,.2f} USD so far"
        running = f"{endpoint.instances} x {endpoint.instance or 'an unknown instance'} in {endpoint.region}"
        since = f"since {endpoint.since:%Y-%m-%d %H:%M} UTC"
        st.markdown(plain(f"{endpoint.artifact} ({endpoint.variant}) on {running}: {hour}, {since}{so_far}."))
        # Its traffic, what a check found, and code that calls it.
        traffic = words.requests(endpoint.traffic)
        st.markdown(plain(f"{traffic[0].upper()}{traffic[1:]}."))
        update_form.show_findings(endpoint)
        with st.expander("Client code"):
            st.code(serve_command.boto3(endpoint.name, endpoint.region), language="python")


def _buttons(opened: Workspace, endpoint: EndpointView, made_artifacts: Sequence[ArtifactView]) -> bool:
    """Draw the buttons of an endpoint. Return whether it is to be checked."""
    # Check what is served, update it or delete it.
    prove: bool = st.button(
        "Prove",
        icon=":material/fact_check:",
        key=f"endpoints_prove-{endpoint.id}",
        **disabled_unless_allowed(opened, Action.ASK),
    )
    if update_form.popover(opened, endpoint, made_artifacts):
        _refresh()
    with st.popover("Delete", icon=":material/delete:", key=f"endpoints_ask-delete-{endpoint.id}"):
        st.markdown(
            "Delete this endpoint with its model, configuration and weights in the bucket? You can deploy it again."
        )
        refused = disabled_unless_allowed(opened, Action.DELETE_ENDPOINT, endpoint.owner)
        if st.button("Yes, delete it", key=f"endpoints_delete-{endpoint.id}", **refused):
            _delete(opened, endpoint)
    return prove


def _delete(opened: Workspace, endpoint: EndpointView) -> None:
    """Delete an endpoint and wait until AWS no longer has it, since it costs money until then."""
    with shell.errors_inline():
        with st.spinner("Deleting: this takes some minutes"):
            endpoints.delete(opened, endpoint.id, endpoint.region)
        st.toast(plain(f"{endpoint.id} is deleted, with everything created for it."), icon=":material/check_circle:")
        _refresh()


def _refresh() -> None:
    """Ask AWS again."""
    st.session_state.pop(LISTING, None)
    st.rerun()
