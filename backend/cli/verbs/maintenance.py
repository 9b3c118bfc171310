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
    remove_damaged: Annotated[
        bool, typer.Option(help="First take rows that cannot be read out of the database.")
    ] = False,
) -> None:
    """Accelerators, engines, database, disk, credentials (present or not, never their value), each with a fix."""
    workspace = service.open_workspace()
    if remove_damaged:
        doctor.remove_damaged(workspace)
    findings = doctor.examine(workspace)
    marks = {"ok": "ok  ", "warning": "warn", "problem": "FAIL"}
    lines = [
        f"{marks[f.level]}  {f.subject}: {f.finding}" + (f"\n      fix: {f.fix}" if f.fix else "") for f in findings
    ]
    emit(findings, as_json=json, text="\n".join(lines))
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)


def back_up(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    files: Annotated[
        bool,
        typer.Option("--files", help="With the files of artifacts and evaluations, and what jobs keep to go on from."),
    ] = False,
    json: Json = False,
) -> None:
    """Everything the database knows, in one file, while jobs go on; of artifacts the manifests, or with --files all."""
    result = backup.back_up(service.open_workspace(), file, with_files=files)
    document = result.model_dump(mode="json", exclude={"members"}) | {"file": str(file), "bytes": result.bytes}
    left_out = "" if files else " The files of artifacts and evaluations are not in it (--files)."
    emit(document, as_json=json, text=f"{file}: {_row_counts(result.rows)}, {result.bytes / 1e6:.3g} MB.{left_out}")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `whetstone backup` wrote.")], json: Json = False
) -> None:
    """Into a new home. Jobs that ran when it was made are lost, to be resumed; jobs that waited are held until
    released."""
    restored = backup.restore(service.open_workspace(), file)
    lines = [f"Restored {_row_counts(restored.rows)}, as of {restored.created:%Y-%m-%d %H:%M:%S} UTC."]
    if restored.lost:
        lines += [f"{restored.lost} ran then and can be resumed.", next_command("jobs", "list", "--state", "lost")]
    if restored.held:
        lines += [
            f"{restored.held} waited then and are held: look at what they do, then `whetstone jobs release JOB` lets one run.",
            next_command("jobs", "list", "--state", "cancelled"),
        ]
    if restored.missing:
        lines.append(
            f"The files of {restored.missing} artifacts or evaluations are not there: they were not in the backup."
        )
    emit(restored, as_json=json, text="\n".join(lines))


def _row_counts(counted: dict[str, int]) -> str:
    return ", ".join(
        f"{counted.get(name, 0)} {name}" for name in ("jobs", "events", "artifacts", "evaluations", "models")
    )


def show_activity(
    who: Annotated[str | None, typer.Option(help="Only this person's.")] = None,
    words: Annotated[str, typer.Option(help="Only what holds all of these.")] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="At most so many that ended badly, and so many changes.")
    ] = 20,
    json: Json = False,
) -> None:
    """Show running jobs, failed jobs and recent changes. Only admins see those of other people."""
    workspace = service.open_workspace()
    running = running_jobs.list_running(workspace, owner=who, words=words)
    states = [str(state) for state in running_jobs.UNSUCCESSFUL]
    bad = jobs.listing(workspace, states=states, owner=who, words=words, limit=limit)
    changes = audit.listing(
        workspace, who=audit.readable_owner(workspace) or ((who,) if who else ()), words=words, limit=limit
    )
    document = {"running": running, "ended_badly": bad, "changes": changes}
    time_format = "%Y-%m-%d %H:%M"
    parts = [
        _section(
            "Running",
            ("job", "state", "owner", "host", "devices", "since (UTC)", "lease s", "title"),
            [
                (
                    j.id,
                    j.state,
                    j.owner,
                    j.host,
                    " ".join(j.devices),
                    f"{j.since:{time_format}}" if j.since else "-",
                    j.lease_s,
                    j.title,
                )
                for j in running
            ],
        ),
        _section(
            "Ended badly",
            ("job", "state", "owner", "at (UTC)", "title", "why"),
            [
                (
                    j.id,
                    j.state,
                    j.owner,
                    f"{j.finished_at or j.created_at:{time_format}}",
                    j.title,
                    (j.error or "")[:80],
                )
                for j in bad
            ],
        ),
        _section(
            "Changes",
            ("at (UTC)", "who", "from", "did", "to"),
            [(f"{c.at:{time_format}}", c.who, c.origin, c.action, f"{c.kind} {c.target}") for c in changes],
        ),
    ]
    emit(document, as_json=json, text="\n\n".join(parts))


def _section(title: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    return f"{title}\n{table(header, rows)}" if rows else f"{title}: nothing."
