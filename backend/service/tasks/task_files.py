"""lm-eval tasks on disk: a YAML file beside its JSONL data, checked line by line before anything starts.

Knows nothing of variants or jobs; `tasks` says which are meant, and keeps copies of them.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from backend import sandbox
from backend.catalog.text import task_templates
from backend.domain.errors import InvalidRecipe, RequestError, TooDemanding
from backend.domain.evaluation.tasks import task_rules
from backend.service import paths
from backend.service.plans import recipe_files

SUFFIXES = (".yaml", ".yml")
MAX_BYTES, MOST_SETTINGS = 100_000_000, 100_000
"""Largest data file and largest task YAML, in bytes."""


class InvalidTask(RequestError):
    """The task cannot be scored: give an lm-eval YAML file whose data lies beside it."""


class TaskFile(NamedTuple):
    """A task that was checked. `data`: split -> files; `samples` of the split that is scored."""

    name: str
    source: Path
    config: dict[str, Any]
    data: dict[str, list[Path]]
    samples: int
    sha256: str


def read(source: Path) -> TaskFile:
    """Raises InvalidTask with the first thing that is wrong."""
    config = _config(source)
    if problem := task_rules.find_problem(config):
        raise InvalidTask(f"The task {source.name} cannot be used: {problem}.")
    _check_plain(source, config)
    data = {
        split: [_data_file(source, name) for name in names] for split, names in task_rules.data_files(config).items()
    }
    scored = task_rules.scored_split(config)
    fields = _fields(source, config)
    rows = {split: sum(_rows(source, file, fields) for file in files) for split, files in data.items()}
    return TaskFile(config["task"], source, config, data, rows[str(scored)], _sha256(source, data))


def _config(source: Path) -> dict[str, Any]:
    # 1. Read the file as YAML.
    try:
        config = recipe_files.read_yaml(
            _bytes(source, source, MOST_SETTINGS).decode(), what=f"task {source.name}", most=MOST_SETTINGS
        )
    # 2. Turn what is wrong with it into a sentence.
    except UnicodeDecodeError:
        raise InvalidTask(f"The task {source.name} is not text.") from None
    except InvalidRecipe as error:
        if "!function" in str(error):
            raise InvalidTask(
                f"The task {source.name} cannot be used: `!function` needs code of its own, which is not run here: "
                "prepare the rows instead."
            ) from None
        raise InvalidTask(str(error)) from None
    # 3. Require settings by name.
    if not isinstance(config, dict):
        raise InvalidTask(f"The task {source.name} must be settings such as `task: NAME`.")
    return config


def _check_plain(source: Path, config: dict[str, Any]) -> None:
    """Refuse values that JSON cannot hold, since the copy is JSON: YAML's dates, sets and NaN."""
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidTask(
            f"The task {source.name} has a value that is neither text nor a finite number, such as a day: put it "
            "in quotes."
        ) from None


def _data_file(source: Path, name: str) -> Path:
    """Return the path of a data file, relative to the task's folder."""
    if "://" in name:
        raise InvalidTask(f"The task {source.name} would fetch {name[:80]}: put the file beside it.")
    file = paths.find_file(str(source.parent.resolve() / name))
    if file is None:
        raise InvalidTask(
            f"The task {source.name} asks for {name[:80]}, which is not there: put it beside {source.name}."
        )
    return file


def _fields(source: Path, config: dict[str, Any]) -> dict[str, str]:
    """Fields that every row must have -> the setting that asks for it."""
    written = [(setting, text) for setting, texts in task_rules.row_templates(config).items() for text in texts]
    fields: dict[str, str] = {}
    is_ours = sandbox.is_ours(source.resolve())
    for (setting, _), template in zip(
        written, _templates(source.name, is_ours, tuple(text for _, text in written)), strict=True
    ):
        if why := template.get(task_templates.PROBLEM):
            raise InvalidTask(f"The task {source.name} cannot be used: `{setting}` is no template ({why}).")
        fields |= dict.fromkeys(template[task_templates.NAMES], setting)
    return fields


@lru_cache(maxsize=64)
def _templates(name: str, is_ours: bool, texts: tuple[str, ...]) -> list[dict[str, list[str] | str]]:
    """Read templates with `task_templates.read`, in the sandbox unless the task is bundled. Raises InvalidTask."""
    if is_ours:
        return task_templates.read(list(texts))
    try:
        return sandbox.run(task_templates.read, list(texts), about=f"The templates of the task {name}")
    except TooDemanding as error:
        raise InvalidTask(str(error)) from None


def _rows(source: Path, file: Path, fields: dict[str, str]) -> int:
    """Check every row and return their number."""
    count = 0
    for number, line in enumerate(_bytes(source, file).split(b"\n"), 1):
        if line.strip():
            count += 1
            _row(f"Line {number} of {file.name}", line, fields)
    if not count:
        raise InvalidTask(f"{file.name} of the task {source.name} has no rows.")
    return count


def _row(where: str, line: bytes, fields: dict[str, str]) -> None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidTask(f"{where} is not JSON: each line must be one object.") from None
    if not isinstance(row, dict):
        raise InvalidTask(f'{where} is no object: each line must be one, such as {{"question": ...}}.')
    for name, setting in fields.items():
        if name not in row:
            has = ", ".join(map(str, row))[:100] or "nothing"
            raise InvalidTask(f"{where} has no `{name}`, which `{setting}` asks for; it has {has}.")


def _bytes(source: Path, file: Path, most: int = MAX_BYTES) -> bytes:
    try:
        if file.stat().st_size > most:
            raise InvalidTask(f"{file.name} of the task {source.name} has more than {most / 1e6:g} MB: take a sample.")
        return file.read_bytes()
    except OSError as error:
        raise InvalidTask(f"{file.name} cannot be read ({error.strerror}): check its permissions.") from None


def _sha256(source: Path, data: dict[str, list[Path]]) -> str:
    """Return the sha256 over the task's file and its data files in the order of splits, each preceded by its length."""
    digest = hashlib.sha256()
    for file in [source, *(file for split in sorted(data) for file in data[split])]:
        content = file.read_bytes()
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()
