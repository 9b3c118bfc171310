"""`whetstone tasks ...`: tasks by name, which evaluations score."""

from __future__ import annotations

from typing import Annotated

import typer

from backend import service
from backend.cli.output import Json, emit, next_command, say, table
from backend.domain.figures import figure
from backend.service.tasks import named_tasks

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_tasks(json: Json = False) -> None:
    """List the tasks that can be given by name: items, what guessing reaches, licence, and whether the data is here."""
    tasks = named_tasks.listing(service.open_workspace())
    rows = [
        (task.name, task.items, figure(task.floor), task.licence, "yes" if task.path else "no", task.title)
        for task in tasks
    ]
    emit(tasks, as_json=json, text=table(("task", "items", "guessing", "licence", "here", "what it is"), rows))


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name that `whetstone tasks list` shows.")],
    folder: Annotated[
        str | None,
        typer.Argument(help="A folder with the data set's files, laid out as on the hub. Default: they are fetched."),
    ] = None,
    json: Json = False,
) -> None:
    """Get a task's data, once: from the hub of HF_ENDPOINT, or from a folder. `evaluate` does it by itself too."""
    task = named_tasks.get(service.open_workspace(), name, folder, tell=say)
    step = next_command("evaluate", "starter", "--tasks", task.name)
    emit(task, as_json=json, text=f"{task.name} is in {task.path}. Licence: {task.licence}.\n{step}")
