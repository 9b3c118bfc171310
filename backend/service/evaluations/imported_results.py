"""Imported results of other load generators, each stored in the home as one small JSON file.

They are files, not rows: what they hold is never queried, and the same files twice are one result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from backend import files, sandbox
from backend.domain.errors import InvalidImport, NotFound
from backend.domain.imported import importer
from backend.domain.imported.imported_result import ImportedResult
from backend.domain.imported.importer import MAX_BYTES
from backend.domain.roles import Action
from backend.service.jobs import quotas
from backend.service.workspace import Workspace

__all__ = ["MAX_BYTES", "add", "add_files", "find_several", "listing", "remove", "show"]


READING_S = 20.0
"""Processor time to read a result: a report with every request has a hundred megabytes."""


def add(workspace: Workspace, contents: Sequence[tuple[str, bytes]]) -> ImportedResult:
    """Read (name, content) of each of one run's files and keep it. Raises InvalidImport, and then nothing is kept;
    ReadOnly."""
    workspace.check(Action.ADD_RESULT)
    names = ", ".join(name for name, _ in contents)
    result = ImportedResult.model_validate_json(
        sandbox.run(importer.parse_results_to_json, list(contents), about=names, cpu_s=READING_S)
    )
    file = _file(workspace, result.id)
    quotas.check_upload(workspace, len(result.model_dump_json()))
    with workspace.changing(Action.ADD_RESULT, result.id, detail=names):
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, result.model_dump_json())
    return result


def add_files(workspace: Workspace, paths: Sequence[Path]) -> ImportedResult:
    """Read the files and add them as one result. Raises InvalidImport, ReadOnly."""
    return add(workspace, [(path.name, _bytes(path)) for path in paths])


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidImport(
                f"{path.name} has more than {MAX_BYTES // 1_000_000} MB: save it without single requests."
            )
        return path.read_bytes()
    except OSError as error:
        raise InvalidImport(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from None


def listing(workspace: Workspace) -> list[ImportedResult]:
    """Return the results, sorted by name and time."""
    result_files = _folder(workspace).glob("b-*.json")
    return sorted(
        (_read(file) for file in sorted(result_files)), key=lambda result: (result.name, result.measured_at or "")
    )


def show(workspace: Workspace, result_id: str) -> ImportedResult:
    """Raises NotFound."""
    file = _file(workspace, result_id)
    if not file.is_file():
        raise NotFound(f"There is no imported result {result_id} here: `whetstone bench imported` lists them.")
    return _read(file)


def find_several(workspace: Workspace, ids: Sequence[str]) -> list[ImportedResult]:
    """Return the results of these ids that exist, in order."""
    files = [_file(workspace, import_id) for import_id in ids]
    return [_read(file) for file in files if file.is_file()]


def remove(workspace: Workspace, result_id: str) -> None:
    """Delete the imported result; the original file is not touched. Raises NotFound, ReadOnly."""
    workspace.check(Action.REMOVE_RESULT)
    imported = show(workspace, result_id)
    with workspace.changing(Action.REMOVE_RESULT, result_id, detail=imported.name):
        _file(workspace, result_id).unlink(missing_ok=True)


def _folder(workspace: Workspace) -> Path:
    return workspace.settings.home / "imported"


def _file(workspace: Workspace, result_id: str) -> Path:
    """Return the file of a result. An id has letters, digits and dashes; anything else names no file."""
    name = result_id if result_id.replace("-", "").isalnum() else "-"
    return _folder(workspace) / f"{name}.json"


def _read(file: Path) -> ImportedResult:
    try:
        return ImportedResult.model_validate_json(file.read_bytes())
    except ValidationError:
        raise InvalidImport(f"{file} was changed by hand: delete it and import the result again.") from None
