"""What is served as cards: servers of this machine by their jobs, SageMaker endpoints as AWS has them when one
looks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import streamlit as st

from app import navigation, shell
from app.endpoints import update_form
from app.formatting import UNKNOWN, ago, message, plain
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
from backend.service.serving import endpoints, serve
from backend.service.serving.endpoints import EndpointView

DEPLOY = "whetstone deploy ARTIFACT --instance ml.g6.12xlarge --role ROLE_ARN --bucket BUCKET --dry-run"
ICONS = {"InService": ":material/check_circle:", "Failed": ":material/error:", "Deleting": ":material/delete:"}
LISTING = "endpoints_held"
"""What AWS answered last in this session, with when."""


def show_local(opened: Workspace) -> None:
    """Serve jobs that are not over, with where each variant answers."""
    active = [job for job in jobs.active(opened) if job.kind == JobKind.SERVE]
    for job in active:
        with st.container(border=True):
            served = serve.endpoints(opened, job.id)
            for each in served:
                st.markdown(f"**{plain(each.name)}** at {plain(each.url)}")
                with st.expander("How a client asks it"):
                    url = f"{each.url.removesuffix('/v1')}/v1"
                    asked = serve_command.curl(each.served_name, chat=False, url=url, key_file=each.key_file)
                    st.code(asked, language="bash")
            if not served:
                st.markdown(plain(f"{job.title}: {job.state}"))
            navigation.link("job", "Its job", ":material/work:", id=job.id)
    if not active:
        st.caption("No server runs on this machine.")
        navigation.link("playground", "Start one in the Playground", ":material/chat:")


def show_sagemaker(opened: Workspace) -> None:
    """Those of the environment's region that Whetstone made, after AWS was asked."""
    if lacking := prices.missing_credentials():
        st.caption(message(f"There are no AWS credentials here: {lacking}. Then this lists what Whetstone deployed."))
        return
    if st.button("Ask AWS again", key="endpoints_ask", icon=":material/refresh:"):
        st.session_state.pop(LISTING, None)
    if LISTING not in st.session_state:
        with shell.errors_inline(), st.spinner("Asking AWS"):
            st.session_state[LISTING] = (endpoints.listing(opened), datetime.now(UTC))
    if LISTING not in st.session_state:
        return
    found, at = st.session_state[LISTING]
    if not found:
        st.markdown(
            "Whetstone runs nothing there, so nothing costs money. This prints what deploying an artifact would ask of AWS:"
        )
        st.code(DEPLOY, language="bash")
        return
    demand = f"on demand{price_list.discount_text(opened.settings.discount)}"
    hour = sum(each.usd_per_hour or 0 for each in found)
    so_far = sum(each.usd_so_far or 0 for each in found)
    served = [each.traffic.hour.requests for each in found if each.traffic is not None]
    shell.show_figures(
        [
            ("Endpoints", str(len(found)), f"asked {ago(at)}"),
            ("An hour", f"{hour:,.2f} USD", demand),
            ("So far", f"{so_far:,.2f} USD", "at the instances that run now"),
            ("Requests", f"{sum(served):,}" if served else UNKNOWN, "in the last hour"),
        ]
    )
    made = artifacts.listing(opened)
    for each in found:
        _card(opened, each, made)


def _card(opened: Workspace, found: EndpointView, made: Sequence[ArtifactView]) -> None:
    with st.container(border=True, key=f"endpoints_card-{found.id}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            icon = ICONS.get(found.state, ":material/hourglass_top:")
            st.markdown(
                f"{icon} **{plain(found.id)}** · {plain(found.state)}{owner_suffix(opened, found.owner or '')}",
                width="stretch",
            )
            prove = _buttons(opened, found, made)
        if prove:
            update_form.check_served(opened, found)
        if found.reason:
            st.error(plain(found.reason), icon=":material/error:")
        if found.idle:
            st.warning(
                "Nothing was asked of it for as long as its alarm watches, and it costs money.",
                icon=":material/bedtime:",
            )
        hour = words.hour(found.usd_per_hour, found.discount)
        so_far = "" if found.usd_so_far is None else f", about {found.usd_so_far:,.2f} USD so far"
        running = f"{found.instances} x {found.instance or 'an unknown instance'} in {found.region}"
        st.markdown(
            plain(
                f"{found.artifact} ({found.variant}) on {running}: {hour}, since {found.since:%Y-%m-%d %H:%M} UTC{so_far}."
            )
        )
        asked = words.requests(found.traffic)
        st.markdown(plain(f"{asked[0].upper()}{asked[1:]}."))
        update_form.show_findings(found)
        with st.expander("How a client asks it"):
            st.code(serve_command.boto3(found.name, found.region), language="python")


def _buttons(opened: Workspace, found: EndpointView, made: Sequence[ArtifactView]) -> bool:
    """The row of buttons; whether it is to be proven."""
    prove: bool = st.button(
        "Prove",
        icon=":material/fact_check:",
        key=f"endpoints_prove-{found.id}",
        **disabled_unless_allowed(opened, Action.ASK),
    )
    if update_form.popover(opened, found, made):
        _refresh()
    with st.popover("Delete", icon=":material/delete:", key=f"endpoints_ask-delete-{found.id}"):
        st.markdown(
            "Delete this endpoint with its model, configuration and weights in the bucket? It can be deployed again."
        )
        refused = disabled_unless_allowed(opened, Action.DELETE_ENDPOINT, found.owner)
        if st.button("Yes, delete it", key=f"endpoints_delete-{found.id}", **refused):
            _delete(opened, found)
    return prove


def _delete(opened: Workspace, endpoint: EndpointView) -> None:
    """Waits until AWS has it no longer: until then it costs money."""
    with shell.errors_inline():
        with st.spinner("Deleting it: this takes some minutes"):
            endpoints.delete(opened, endpoint.id, endpoint.region)
        st.toast(plain(f"{endpoint.id} is deleted, with all that was made for it."), icon=":material/check_circle:")
        _refresh()


def _refresh() -> None:
    """Ask AWS anew."""
    st.session_state.pop(LISTING, None)
    st.rerun()
