"""`whetstone doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.output import emit
from backend.cli.verbs.optimize import Json
from backend.service.machines import doctor


def register(app: typer.Typer) -> None:
    app.command("doctor")(command)


def command(
    json: Json = False,
    remove_damaged: Annotated[bool, typer.Option(help="First take rows that cannot be read out of the database.")] = False,
) -> None:
    """Accelerators, engines, database, disk, credentials (present or not, never their value), each with a fix."""
    workspace = service.open_workspace()
    if remove_damaged:
        doctor.remove_damaged(workspace)
    findings = doctor.examine(workspace)
    marks = {"ok": "ok  ", "warning": "warn", "problem": "FAIL"}
    lines = [f"{marks[f.level]}  {f.subject}: {f.finding}" + (f"\n      fix: {f.fix}" if f.fix else "") for f in findings]
    emit(findings, as_json=json, text="\n".join(lines))
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)
