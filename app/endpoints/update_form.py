"""Update a SageMaker endpoint in place: another artifact or instance, what it costs meanwhile, and the steps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import streamlit as st

from app import quality_confirmation, shell
from app.formatting import local_time, message, plain, size
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.roles import Action
from backend.present.words import endpoints as words
from backend.service import Workspace
from backend.service.jobs.artifacts import ArtifactView
from backend.service.serving import endpoints
from backend.service.serving.endpoints import EndpointView, UpdateRequest

PROVEN = "endpoints_proven"
"""Session key: findings by endpoint and artifact."""
ABOUT = (
    "Serve another artifact, or use another instance, without an interruption. New instances start beside the old"
    " ones and AWS switches to them. When the new endpoint is verified, the old one is removed. If a step fails, "
    "the old one continues to serve."
)
ICONS = {True: ":material/check_circle:", False: ":material/error:", None: ":material/help:"}


def popover(opened: Workspace, endpoint: EndpointView, artifacts: Sequence[ArtifactView]) -> bool:
    """Draw the button with its form. Return whether the endpoint was updated in this run."""
    with st.popover("Update", icon=":material/swap_horiz:", key=f"endpoints_ask-update-{endpoint.id}"):
        # An update needs an artifact.
        if not artifacts:
            st.markdown("There is no artifact to serve instead: make one on Build.")
            return False
        st.markdown(ABOUT)
        # Choose what changes; say what it costs meanwhile.
        artifact, changes = _choose_changes(opened, endpoint, artifacts)
        price = endpoints.deployable_instances(opened).get(changes.instance or endpoint.instance or "")
        after = None if price is None else price * endpoint.instances
        st.markdown(plain(words.meanwhile(endpoint.usd_per_hour, after, endpoint.discount)))
        # Confirm a low quality, and show the same as a command.
        anyway = quality_confirmation.confirm(opened, [artifact], f"update-{endpoint.id}")
        st.code(_command(endpoint, artifact, changes), language="bash", wrap_lines=True)
        st.caption(
            "This takes ten minutes or more. If you leave this page AWS continues; the same update again finishes it."
        )
        # Update if it is allowed and confirmed.
        allowed = disabled_unless_allowed(opened, Action.UPDATE_ENDPOINT, endpoint.owner)
        options = allowed if allowed or anyway else {"disabled": True}
        if st.button("Yes, update it", key=f"endpoints_update-{endpoint.id}", type="primary", **options):
            return _update(opened, endpoint, artifact, changes)
    return False


def _choose_changes(
    opened: Workspace, endpoint: EndpointView, artifacts: Sequence[ArtifactView]
) -> tuple[str, UpdateRequest]:
    labels = {}
    for view in artifacts:
        details = f"{size(view.bytes)} · {view.id} · {local_time(view.created_at)[:16]}"
        labels[view.id] = f"{view.recipe} of {view.model} · {details}"
    labels |= {endpoint.artifact: f"{labels[endpoint.artifact]} (served now)"} if endpoint.artifact in labels else {}
    artifact = st.selectbox(
        "Artifact",
        list(labels),
        format_func=lambda artifact_id: labels[artifact_id],
        key=f"endpoints_artifact-{endpoint.id}",
    )
    instance = st.selectbox(  # no None among the options, which would be the placeholder
        "Instance",
        ["", *(name for name in endpoints.deployable_instances(opened) if name != endpoint.instance)],
        format_func=lambda name: name or f"as now ({endpoint.instance})",
        key=f"endpoints_instance-{endpoint.id}",
    )
    named = st.text_input(
        "CloudWatch alarms at which AWS goes back by itself",
        placeholder="none, or their names with commas",
        key=f"endpoints_alarms-{endpoint.id}",
    )
    alarms = tuple(filter(None, map(str.strip, named.split(","))))
    watch = (
        st.number_input(
            "Minutes for which both run and these are watched", 0, 60, 5, key=f"endpoints_watch-{endpoint.id}"
        )
        if alarms
        else 0
    )
    return artifact, UpdateRequest(instance=instance or None, alarms=alarms, bake_s=60 * int(watch))


def _command(endpoint: EndpointView, artifact: str, changes: UpdateRequest) -> str:
    parts = ["whetstone", "endpoints", "update", endpoint.id, artifact, "--region", endpoint.region]
    if changes.instance:
        parts += ["--instance", changes.instance]
    for name in changes.alarms:
        parts += ["--alarm", name]
    if changes.alarms:
        parts += ["--watch", str(changes.bake_s // 60)]
    return shlex.join(parts)


def _update(opened: Workspace, endpoint: EndpointView, artifact: str, changes: UpdateRequest) -> bool:
    """Update the endpoint, show each step, and wait until it serves the artifact."""
    with st.status("Updating", expanded=True) as status:
        try:
            planned, rollout = endpoints.plan_update(
                opened, endpoint.id, artifact, changes, endpoint.region, anyway=True
            )
            findings = endpoints.update(opened, planned, rollout, lambda line: status.update(label=message(line)))
        except WhetstoneError as error:
            status.update(label="Not updated", state="error")
            st.error(message(error), icon=":material/error:")
            return False
    _store(endpoint.id, artifact, findings)
    st.toast(plain(f"{endpoint.id} serves {artifact}."), icon=":material/check_circle:")
    return True


def check_served(opened: Workspace, endpoint: EndpointView) -> None:
    """Send one request and store the findings; `show_findings` shows them."""
    with shell.errors_inline(), st.spinner("Asking it once, and reading its log"):
        _store(endpoint.id, endpoint.artifact, endpoints.prove(opened, endpoint.id, endpoint.region))


def _store(endpoint_id: str, artifact: str, findings: list[Finding]) -> None:
    st.session_state.setdefault(PROVEN, {})[endpoint_id, artifact] = findings


def show_findings(endpoint: EndpointView) -> None:
    """Show the findings of this session."""
    for finding in st.session_state.get(PROVEN, {}).get((endpoint.id, endpoint.artifact), []):
        st.markdown(f"{ICONS[finding.proven]} {message(finding.words)}")
