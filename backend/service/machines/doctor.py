"""Checks of this machine and its home; each finding has a fix."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import Literal

from pydantic import BaseModel

from backend.artifacts import locations
from backend.domain.errors import WhetstoneError
from backend.domain.figures import counted
from backend.domain.jobs.jobs import JobState
from backend.domain.machine.environments import SERVE
from backend.hardware import engine_status, probe
from backend.launchers.cluster import launcher
from backend.launchers.cluster.requests import HOW, Node
from backend.service import unreadable_rows
from backend.service.jobs import artifact_storage, quotas, supervisors
from backend.service.workspace import Workspace
from backend.store import job_statistics

LOW_DISK_BYTES = 5_000_000_000
DAMAGED = "`whetstone doctor --remove-damaged` takes it out of the database; its files stay"
NEWER = "update this checkout to the version that wrote it; nothing is lost, and `--remove-damaged` leaves it"
NEARLY_FULL = 0.9
"""Share of the artifact quota from which doctor warns."""


class Finding(BaseModel):
    subject: str
    level: Literal["ok", "warning", "problem"]
    finding: str
    fix: str | None = None


def examine(workspace: Workspace) -> list[Finding]:
    """Run every check, in the order in which a newcomer needs them."""
    return [
        _processor(),
        _accelerators(),
        _compiler(),
        *_engines(workspace),
        _database(workspace),
        *_damaged(workspace),
        _disk(workspace),
        *_quotas(workspace),
        *_artifacts(workspace),
        *_supervisors(workspace),
        *_cluster(workspace),
        _jobs(workspace),
        _logs(workspace),
        _metrics(workspace),
        _credentials("AWS credentials", ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")),
        _credentials("Hugging Face token", ("HF_TOKEN",)),
    ]


def _processor() -> Finding:
    facts = probe.probe()
    return Finding(subject="Processor", level="ok", finding=f"{facts['cpu']}, {counted(facts['cores'], 'core')}")


def _accelerators() -> Finding:
    named = ", ".join(item.name for item in probe.accelerators())
    return Finding(subject="Accelerators", level="ok", finding=named or "none: everything runs on the processor")


def _compiler() -> Finding:
    if probe.has_compiler():
        return Finding(subject="Compiler", level="ok", finding="C++ compiler and Python headers are there")
    fix = "install g++ and python3-dev; or serve with `enforce_eager: true`"
    return Finding(subject="Compiler", level="warning", finding="no C++ compiler or Python headers", fix=fix)


def _engines(workspace: Workspace) -> list[Finding]:
    """Report the engines. Only the serving engine is required; others are needed by some recipes."""
    findings = []
    for engine in engine_status.list_engines(workspace.settings):
        subject, status = f"Engine {engine.name}", str(engine.version if engine.installed else engine.reason)
        if engine.name == SERVE.name and not engine.installed and status.startswith("not installed"):
            fix = f"whetstone engines install {engine.name}"
            findings.append(
                Finding(
                    subject=subject, level="warning", finding="not installed: nothing is served or measured", fix=fix
                )
            )
        else:
            findings.append(Finding(subject=subject, level="ok", finding=status))
    return findings


def _database(workspace: Workspace) -> Finding:
    with workspace.store.read() as session:
        session.connection()
    return Finding(subject="Database", level="ok", finding=workspace.store.engine.url.render_as_string())


def _damaged(workspace: Workspace) -> list[Finding]:
    return [
        Finding(
            subject=f"Stored {row.kind} {row.id}",
            level="warning",
            finding=row.why,
            fix=NEWER if row.newer else DAMAGED,
        )
        for row in unreadable_rows.find_all(workspace)
    ]


def remove_damaged(workspace: Workspace) -> None:
    """Delete damaged rows from the database; rows of a newer version stay. Raises ReadOnly in a demonstration."""
    for row in unreadable_rows.find_all(workspace):
        if not row.newer:
            unreadable_rows.remove(workspace, row)


def _disk(workspace: Workspace) -> Finding:
    free = probe.free_disk(workspace.settings.home)
    level: Literal["ok", "warning"] = "ok" if free > LOW_DISK_BYTES else "warning"
    fix = None if level == "ok" else "free some space, or set WHETSTONE_HOME to a larger disk"
    return Finding(
        subject="Disk", level=level, finding=f"{free / 1e9:.0f} GB free under {workspace.settings.home}", fix=fix
    )


def _quotas(workspace: Workspace) -> list[Finding]:
    """Report the use of the upload limit and the import limit, if they are set."""
    uploads, imports = workspace.settings.uploads_gb, workspace.settings.imports_gb
    sentences = (
        [f"uploads take {quotas.uploaded_bytes(workspace) / 1e9:.2f} of {uploads:g} GB"] if uploads is not None else []
    )
    sentences += [f"one person may import {imports:g} GB of models"] if imports is not None else []
    return [Finding(subject="Limits", level="ok", finding="; ".join(sentences))] if sentences else []


def _artifacts(workspace: Workspace) -> list[Finding]:
    """Report the artifact location, whether it is writable, and the use of its quota."""
    if workspace.read_only:
        return []
    # 1. Check that the location answers and can be written.
    try:
        usage = artifact_storage.usage(workspace)
        locations.location_for_new(workspace.settings).check_writable()
    except WhetstoneError as error:
        return [
            Finding(
                subject="Artifacts", level="problem", finding=str(error), fix="see WHETSTONE_ARTIFACTS in docs/team.md"
            )
        ]
    # 2. Compare the usage with the quota.
    text = f"{usage.bytes / 1e9:.2f} GB in {usage.place}, which can be written"
    if usage.quota is None:
        return [Finding(subject="Artifacts", level="ok", finding=f"{text}; no quota")]
    share = (
        f"{text}; {usage.bytes / usage.quota:.0%} of the quota of {usage.quota / 1e9:.2f} GB" if usage.quota else text
    )
    full = usage.bytes > NEARLY_FULL * usage.quota
    fix = "`whetstone artifacts gc --unused-for DAYS`, or a higher WHETSTONE_ARTIFACTS_QUOTA" if full else None
    return [Finding(subject="Artifacts", level="warning" if full else "ok", finding=share, fix=fix)]


def _supervisors(workspace: Workspace) -> list[Finding]:
    """Report supervisors with a heartbeat in the last day, and warn of silent ones that have jobs."""
    with workspace.store.read() as session:
        beats = job_statistics.list_heartbeats(session)
    findings = []
    # This home's own.
    if not supervisors.is_alive(workspace):
        text = "not running: `whetstone up` and every waiting command start one"
        findings.append(Finding(subject="Supervisor", level="ok", finding=text))
    # Every one that was heard lately.
    for beat in beats:
        text = f"{beat.id} on {beat.host} ({beat.home}), heard {beat.age_s:.0f} s ago"
        if beat.alive:
            findings.append(Finding(subject="Supervisor", level="ok", finding=f"running: {text}"))
        elif beat.jobs:
            fix = "`whetstone up` in that home takes its jobs up; else another supervisor gives them up as lost"
            silent = f"silent with {beat.jobs} job{'' if beat.jobs == 1 else 's'}: {text}"
            findings.append(Finding(subject="Supervisor", level="warning", finding=silent, fix=fix))
    return findings


def _cluster(workspace: Workspace) -> list[Finding]:
    """Report the Ray cluster if one is configured."""
    address = workspace.settings.ray_address
    if address is None:
        return []
    try:
        with closing(launcher.make_client(workspace.settings, "ray-doctor.log")) as client:
            nodes = sorted((Node(**node) for node in client.ask("nodes")), key=lambda node: node.address)
    except WhetstoneError as error:
        how = f"start its head, and join this machine with `ray start --address={address}`: docs/team.md says how"
        return [Finding(subject="Ray cluster", level="problem", finding=str(error), fix=how)]
    # A cluster without a node that takes jobs is a warning.
    alive = [node for node in nodes if node.alive]
    able = [node for node in alive if node.takes_jobs]
    text = "; ".join(
        [f"{address}: {counted(len(alive), 'node')}, {len(able)} of them take jobs", *(node.words for node in alive)]
    )
    fix = None if able else f"start nodes that take jobs with {HOW}"
    return [Finding(subject="Ray cluster", level="ok" if able else "warning", finding=text, fix=fix), *_ray_token()]


def _ray_token() -> list[Finding]:
    """Warn if the environment does not make Ray require a token."""
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return []
    text = "nobody has to show a token: whoever reaches its ports runs code on its nodes"
    fix = "set RAY_AUTH_MODE=token where `ray start` and Whetstone are started: docs/team.md says how"
    return [Finding(subject="Ray cluster", level="warning", finding=text, fix=fix)]


def _jobs(workspace: Workspace) -> Finding:
    with workspace.store.read() as session:
        counted, waits = job_statistics.count_jobs(session), job_statistics.oldest_queued_s(session)
    states = {state: sum(number for (one, _), number in counted.items() if one == state) for state in JobState}
    text = ", ".join(f"{number} {state}" for state, number in states.items() if number) or "none yet"
    waiting = f"; the longest-waiting for {waits:.0f} s" if states[JobState.QUEUED] else ""
    return Finding(subject="Jobs", level="ok", finding=f"{text}{waiting}")


def _logs(workspace: Workspace) -> Finding:
    files = sorted(workspace.settings.home.glob("*.log"))
    text = ", ".join(f"{path} ({path.stat().st_size / 1e6:.1f} MB)" for path in files)
    return Finding(subject="Logs", level="ok", finding=text or f"none yet under {workspace.settings.home}")


def _metrics(workspace: Workspace) -> Finding:
    """Report whether the supervisor's metrics answer at the configured address."""
    host, port = workspace.settings.metrics_host, workspace.settings.metrics_port
    if port is None:
        return Finding(subject="Metrics", level="ok", finding="off: WHETSTONE_METRICS_PORT turns the supervisor's on")
    address = f"http://{host}:{port}/metrics"
    with socket.socket() as probe_socket:
        probe_socket.settimeout(1.0)
        answers = probe_socket.connect_ex((host, port)) == 0
    if answers:
        return Finding(subject="Metrics", level="ok", finding=address)
    fix = "start the supervisor with the same WHETSTONE_METRICS_PORT; its log says where a port could not be had"
    return Finding(subject="Metrics", level="warning", finding=f"cannot reach {address}", fix=fix)


def _credentials(subject: str, names: tuple[str, ...]) -> Finding:
    present = [name for name in names if os.environ.get(name)]
    return Finding(subject=subject, level="ok", finding="present" if present else "absent (not needed for local work)")
