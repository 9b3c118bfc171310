"""The bundled table of tasks by name (assets/tasks/named.toml)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from backend.catalog.bundled import toml_tables
from backend.domain.errors import InvalidCatalog
from backend.domain.evaluation.tasks import task_rules
from backend.domain.evaluation.tasks.named_task import NamedTask
from backend.settings import ASSETS

PATH = ASSETS / "tasks" / "named.toml"


@lru_cache(maxsize=4)
def load(path: Path = PATH) -> dict[str, NamedTask]:
    """Return the tasks by name, each with its settings. Raises InvalidCatalog with one sentence that names the row."""
    prompts = toml_tables.document(path).get("prompts", {})
    tasks = {}
    for row in toml_tables.read(path, "tasks", NamedTask, "name"):
        task = row.model_copy(update={"settings": prompts.get(row.prompts, {})})
        if problem := task_rules.find_problem(task.config()):
            raise InvalidCatalog(f"{path.name}, row `{row.name}`: its settings cannot be used ({problem}); correct it.")
        tasks[row.name] = task
    return tasks
