"""`whetstone doctor`, `activity`, `backup` and `restore`: looking after a studio."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend import service
from backend.cli.output import Json, emit, next_command, table
from backend.service.jobs import jobs, running_jobs
from backend.service.machines import doctor
from backend.service.studio import audit, backup


def run_doctor(
    json: Json = False,
    remove_damaged: Annotated[bool, typer.Option(help="First delete damaged rows from the database.")] = False,
) -> None:
    """Check accelerators, engines, database, disk and credentials (only whether they are set), and suggest fixes."""
    workspace = service.open_workspace()
    if remove_damaged:
        doctor.remove_damaged(workspace)
    findings = doctor.examine(workspace)
    # One line a finding, with its fix below; a problem makes the exit status 1.
    marks = {"ok": "ok  ", "warning": "warn", "problem": "FAIL"}
    lines = [
        f"{marks[finding.level]}  {finding.subject}: {finding.finding}"
        + (f"\n      fix: {finding.fix}" if finding.fix else "")
        for finding in findings
    ]
    emit(findings, as_json=json, text="\n".join(lines))
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)


def back_up(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    files: Annotated[
        bool,
        typer.Option("--files", help="Include the files of artifacts and evaluations, and the checkpoints of jobs."),
    ] = False,
    json: Json = False,
) -> None:
    """Back up the database into one file while jobs go on: artifacts' manifests only, or with --files their files
    too."""
    result = backup.back_up(service.open_workspace(), file, with_files=files)
    document = result.model_dump(mode="json", exclude={"members"}) | {"file": str(file), "bytes": result.bytes}
    left_out = "" if files else " The files of artifacts and evaluations are not in it (--files)."
    emit(document, as_json=json, text=f"{file}: {_row_counts(result.rows)}, {result.bytes / 1e6:.3g} MB.{left_out}")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `whetstone backup` wrote.")], json: Json = False
) -> None:
    """Restore a backup into a new home. Jobs that were running can be resumed; jobs that were waiting are held until
    released."""
    # 1. Restore.
    restored = backup.restore(service.open_workspace(), file)
    lines = [f"Restored {_row_counts(restored.rows)}, as of {restored.created:%Y-%m-%d %H:%M:%S} UTC."]
    # 2. Say what happens to the jobs of that time.
    if restored.lost:
        lines += [
            f"{restored.lost} were running at that time and can be resumed.",
            next_command("jobs", "list", "--state", "lost"),
        ]
    if restored.held:
        lines += [
            f"{restored.held} were waiting at that time and are held: check them, then start each with `whetstone "
            "jobs release JOB`.",
            next_command("jobs", "list", "--state", "cancelled"),
        ]
    if restored.missing:
        lines.append(
            f"The files of {restored.missing} artifacts or evaluations are missing: they were not in the backup."
        )
    emit(restored, as_json=json, text="\n".join(lines))


def _row_counts(counted: dict[str, int]) -> str:
    return ", ".join(
        f"{counted.get(name, 0)} {name}" for name in ("jobs", "events", "artifacts", "evaluations", "models")
    )


def show_activity(
    who: Annotated[str | None, typer.Option(help="Only this person.")] = None,
    words: Annotated[str, typer.Option(help="Only entries with all of these words.")] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="At most this many failed jobs, and this many changes.")
    ] = 20,
    json: Json = False,
) -> None:
    """Show running jobs, failed jobs and recent changes. Only admins see those of other people."""
    workspace = service.open_workspace()
    # 1. Read running jobs, failed jobs and changes.
    running = running_jobs.list_running(workspace, owner=who, words=words)
    states = [str(state) for state in running_jobs.UNSUCCESSFUL]
    bad = jobs.listing(workspace, states=states, owner=who, words=words, limit=limit)
    changes = audit.listing(
        workspace, who=audit.readable_owner(workspace) or ((who,) if who else ()), words=words, limit=limit
    )
    document = {"running": running, "ended_badly": bad, "changes": changes}
    # 2. Print them as one document, or as three tables.
    time_format = "%Y-%m-%d %H:%M"
    parts = [
        _section(
            "Running",
            ("job", "state", "owner", "host", "devices", "since (UTC)", "lease s", "title"),
            [
                (
                    job.id,
                    job.state,
                    job.owner,
                    job.host,
                    " ".join(job.devices),
                    f"{job.since:{time_format}}" if job.since else "-",
                    job.lease_s,
                    job.title,
                )
                for job in running
            ],
        ),
        _section(
            "Failed",
            ("job", "state", "owner", "at (UTC)", "title", "why"),
            [
                (
                    job.id,
                    job.state,
                    job.owner,
                    f"{job.finished_at or job.created_at:{time_format}}",
                    job.title,
                    (job.error or "")[:80],
                )
                for job in bad
            ],
        ),
        _section(
            "Changes",
            ("at (UTC)", "who", "from", "did", "to"),
            [
                (
                    f"{change.at:{time_format}}",
                    change.who,
                    change.origin,
                    change.action,
                    f"{change.kind} {change.target}",
                )
                for change in changes
            ],
        ),
    ]
    emit(document, as_json=json, text="\n\n".join(parts))


def _section(title: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    return f"{title}\n{table(header, rows)}" if rows else f"{title}: none."
