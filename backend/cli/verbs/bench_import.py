"""`whetstone bench import|imported|forget`, beside `whetstone bench URL`: results of other load generators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backend import service
from backend.cli.output import Json, emit, table
from backend.domain.imported.imported_result import NO_TEST as NO_VERDICT
from backend.domain.imported.imported_result import ImportedResult, definition_rows, figure_rows
from backend.service.evaluations import imported_results

RUN = "run"
SHOWN = (
    "Concurrency",
    "Time to first token p50 (ms)",
    "Inter-token latency p50 (ms)",
    "Client latency p50 (ms)",
    "Output tokens/s",
    "Requests",
    "Failed",
)


class UrlOrVerb(TyperGroup):
    """A group in which `bench URL ...` means `bench run URL ...`: a first word that is not a verb is the URL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


def import_command(
    files: Annotated[
        list[Path],
        typer.Argument(help="JSON of GuideLLM 0.8, or of `vllm bench serve --save-result` (one file per level)."),
    ],
    json: Json = False,
) -> None:
    """Import a result of GuideLLM or vLLM's bench, to compare it with ours; differing definitions are noted."""
    imported_result = imported_results.add_files(service.open_workspace(), files)
    emit(imported_result, as_json=json, text=_text(imported_result))


def imported_command(json: Json = False) -> None:
    """List imported results."""
    importeds = imported_results.listing(service.open_workspace())
    rows = [(result.id, result.name, result.provenance, result.measured_at, len(result.levels)) for result in importeds]
    emit(importeds, as_json=json, text=table(("id", "name", "provenance", "measured", "levels"), rows))


def forget_command(
    result: Annotated[str, typer.Argument(help="An id from `whetstone bench imported`.")], json: Json = False
) -> None:
    """Remove an imported result. The original file stays."""
    imported_results.remove(service.open_workspace(), result)
    emit({"id": result, "removed": True}, as_json=json, text=f"{result} is removed.")


def _text(imported_result: ImportedResult) -> str:
    figures = figure_rows([imported_result])
    defined = definition_rows([imported_result])
    lines = [
        f"{imported_result.id}: {imported_result.name}, {imported_result.provenance}",
        table(SHOWN, [[row[name] for name in SHOWN] for row in figures]),
        "",
        table(("metric", "with ours", "how that tool defines it"), [list(row.values())[1:] for row in defined]),
        *imported_result.notes,
        NO_VERDICT,
    ]
    return "\n".join(lines)
