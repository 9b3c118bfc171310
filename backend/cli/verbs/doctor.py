"""`whetstone doctor`."""

from __future__ import annotations

import typer

from backend import service
from backend.cli.output import emit
from backend.cli.verbs.optimize import Json
from backend.service.machines import doctor


def register(app: typer.Typer) -> None:
    app.command("doctor")(command)


def command(json: Json = False) -> None:
    """Accelerators, engines, database, disk, credentials (present or not, never their value), each with a fix."""
    findings = doctor.examine(service.open_workspace())
    marks = {"ok": "ok  ", "warning": "warn", "problem": "FAIL"}
    lines = [f"{marks[f.level]}  {f.subject}: {f.finding}" + (f"\n      fix: {f.fix}" if f.fix else "") for f in findings]
    emit(findings, as_json=json, text="\n".join(lines))
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)
