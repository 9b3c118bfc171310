"""An endpoint at SageMaker updated in place: to which artifact, on which instance, what that costs meanwhile, and doing
it."""

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
"""By endpoint and artifact: what proved it in this session."""
ABOUT = (
    "Serve another artifact, or on another instance, without an interruption: new instances start beside the old, AWS goes over "
    "to them, and once the new one is proven the old one is removed. What fails leaves the old one serving."
)
ICONS = {True: ":material/check_circle:", False: ":material/error:", None: ":material/help:"}


def popover(opened: Workspace, found: EndpointView, made: Sequence[ArtifactView]) -> bool:
    """The button with its form; whether it was updated in this run."""
    with st.popover("Update", icon=":material/swap_horiz:", key=f"endpoints_ask-update-{found.id}"):
        if not made:
            st.markdown("There is no artifact to serve instead: make one on Build.")
            return False
        st.markdown(ABOUT)
        artifact, changes = _choose_changes(opened, found, made)
        price = endpoints.deployable_instances(opened).get(changes.instance or found.instance or "")
        after = None if price is None else price * found.instances
        st.markdown(plain(words.meanwhile(found.usd_per_hour, after, found.discount)))
        anyway = quality_confirmation.confirm(opened, [artifact], f"update-{found.id}")
        st.code(_command(found, artifact, changes), language="bash", wrap_lines=True)
        st.caption(
            "It takes ten minutes and more. If you leave this page AWS goes on; the same update again sees it through."
        )
        allowed = disabled_unless_allowed(opened, Action.UPDATE_ENDPOINT, found.owner)
        options = allowed if allowed or anyway else {"disabled": True}
        if st.button("Yes, update it", key=f"endpoints_update-{found.id}", type="primary", **options):
            return _update(opened, found, artifact, changes)
    return False


def _choose_changes(opened: Workspace, found: EndpointView, made: Sequence[ArtifactView]) -> tuple[str, UpdateRequest]:
    labels = {
        each.id: f"{each.recipe} of {each.model} · {size(each.bytes)} · {each.id} · {local_time(each.created_at)[:16]}"
        for each in made
    }
    labels |= {found.artifact: f"{labels[found.artifact]} (served now)"} if found.artifact in labels else {}
    artifact = st.selectbox(
        "Artifact", list(labels), format_func=lambda each: labels[each], key=f"endpoints_artifact-{found.id}"
    )
    instance = st.selectbox(  # no None among the options, which would be the placeholder
        "Instance",
        ["", *(name for name in endpoints.deployable_instances(opened) if name != found.instance)],
        format_func=lambda name: name or f"as now ({found.instance})",
        key=f"endpoints_instance-{found.id}",
    )
    named = st.text_input(
        "CloudWatch alarms at which AWS goes back by itself",
        placeholder="none, or their names with commas",
        key=f"endpoints_alarms-{found.id}",
    )
    alarms = tuple(filter(None, map(str.strip, named.split(","))))
    watch = (
        st.number_input("Minutes for which both run and these are watched", 0, 60, 5, key=f"endpoints_watch-{found.id}")
        if alarms
        else 0
    )
    return artifact, UpdateRequest(instance=instance or None, alarms=alarms, bake_s=60 * int(watch))


def _command(found: EndpointView, artifact: str, changes: UpdateRequest) -> str:
    parts = ["whetstone", "endpoints", "update", found.id, artifact, "--region", found.region]
    parts += ["--instance", changes.instance] if changes.instance else []
    parts += [part for name in changes.alarms for part in ("--alarm", name)]
    return shlex.join(parts + (["--watch", str(changes.bake_s // 60)] if changes.alarms else []))


def _update(opened: Workspace, found: EndpointView, artifact: str, changes: UpdateRequest) -> bool:
    """Waits until it serves that, and shows each step."""
    with st.status("Updating", expanded=True) as status:
        try:
            planned, rollout = endpoints.plan_update(opened, found.id, artifact, changes, found.region, anyway=True)
            findings = endpoints.update(opened, planned, rollout, lambda line: status.update(label=plain(line)))
        except WhetstoneError as error:
            status.update(label="Not updated", state="error")
            st.error(message(error), icon=":material/error:")
            return False
    _store(found.id, artifact, findings)
    st.toast(plain(f"{found.id} serves {artifact}."), icon=":material/check_circle:")
    return True


def check_served(opened: Workspace, found: EndpointView) -> None:
    """Ask it once; `proven` shows what that proves."""
    with shell.errors_inline(), st.spinner("Asking it once, and reading its log"):
        _store(found.id, found.artifact, endpoints.prove(opened, found.id, found.region))


def _store(endpoint_id: str, artifact: str, findings: list[Finding]) -> None:
    st.session_state.setdefault(PROVEN, {})[endpoint_id, artifact] = findings


def show_findings(found: EndpointView) -> None:
    """What was proven of it in this session."""
    for each in st.session_state.get(PROVEN, {}).get((found.id, found.artifact), []):
        st.markdown(f"{ICONS[each.proven]} {plain(each.words)}")
