"""Tasks by name: which there are, which are here, and getting one: its data comes from a hub or from a folder, once.

A task that is here is a folder in the home with its YAML file and its rows, like a task of one's own. Nothing is asked
of a network again. Knows nothing of variants or jobs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from backend import files, sandbox, transfer
from backend.catalog.bundled import named_tasks as table
from backend.catalog.remote import hub
from backend.catalog.text import task_rows
from backend.domain.errors import (
    AccessRefused,
    DownloadFailed,
    InvalidModel,
    NotFound,
    RequestError,
    SourceUnreachable,
    UnknownModel,
)
from backend.domain.evaluation.tasks.named_task import NamedTask
from backend.domain.frozen import Frozen
from backend.domain.roles import Action
from backend.service import paths
from backend.service.plans import recipe_files
from backend.service.tasks import task_files
from backend.service.workspace import Workspace
from backend.transfer import SourceDropped

FOLDER = ("tasks", "named")
"""Place in the home."""
PATIENCE_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses before each further try while a hub sends nothing: a person waits for it."""
READ_CPU_S = 30
HEAD = (
    "# {title}. Data: {source}. Licence: {licence}.\n"
    "# Asked as lm-eval's own task of this name asks it. Written by Whetstone; the rows lie beside it.\n"
)


class TaskListing(Frozen):
    """A task by name as lists show it. `floor` is the share that guessing reaches, `path` its file if it is here."""

    name: str
    title: str
    items: int
    floor: float
    licence: str
    source: str
    path: str | None


def names() -> list[str]:
    """Return the names in the order of the table."""
    return [*table.load()]


def listing(workspace: Workspace) -> list[TaskListing]:
    """Return every task by name."""
    return [_view(task, workspace.settings.home) for task in table.load().values()]


def find_named(name: str) -> NamedTask | None:
    """Return the row of the table, or None."""
    return table.load().get(name)


def file_of(home: Path, task: NamedTask) -> Path | None:
    """Return the YAML file of a task that is here, or None."""
    file = _folder(home, task) / f"{task.name}.yaml"
    return file if file.is_file() else None


def missing(workspace: Workspace, sources: Sequence[str]) -> list[str]:
    """Return those of the sources that are tasks by name and not here yet."""
    home = workspace.settings.home
    return [name for name in sources if (task := find_named(name)) is not None and file_of(home, task) is None]


def get_missing(workspace: Workspace, sources: Sequence[str], tell: Callable[[str], None]) -> None:
    """Get those of the sources that are tasks by name and not here yet. Raises as `get` does."""
    for name in missing(workspace, sources):
        get(workspace, name, tell=tell)


def get(
    workspace: Workspace, name: str, folder: str | None = None, *, tell: Callable[[str], None] = lambda _: None
) -> TaskListing:
    """Get a task's data from the hub of HF_ENDPOINT, or from a folder with the data set's files; nothing if it is here.

    Raises NotFound, NotAllowed, ReadOnly, RequestError for a file that is not the data set's, SourceUnreachable,
    AccessRefused, DownloadFailed. What was fetched stays for the next try.
    """
    # 1. Refuse what is unknown, and whoever may not.
    task = find_named(name)
    if task is None:
        raise NotFound(f"There is no task `{name[:80]}` to get: there are {', '.join(names())}.")
    workspace.check(Action.GET_TASK)
    home = workspace.settings.home
    if file_of(home, task) is not None:
        return _view(task, home)
    # 2. Fetch the files, one process at a time, or find them in the folder.
    cache = workspace.settings.cache / "tasks" / task.folder_name
    with files.exclusive(cache.with_suffix(".lock"), lambda: tell(f"Another process gets {name}: waiting for it.")):
        if file_of(home, task) is None:
            try:
                parquet = _download(task, cache, tell) if folder is None else _find_files(task, folder)
            except (SourceUnreachable, DownloadFailed, UnknownModel, AccessRefused) as error:
                raise type(error)(f"{error} {_by_hand(task)}") from None
            # 3. Write the task's folder whole, or not at all.
            try:
                with workspace.changing(Action.GET_TASK, name, detail=folder or task.data_set):
                    samples = _write(task, parquet, _folder(home, task))
            finally:  # a file that cannot be read is fetched anew
                shutil.rmtree(cache, ignore_errors=True)
            if samples != task.items:
                tell(f"{name}: these files have {samples:,} items, and the data set has {task.items:,}.")
    return _view(task, home)


def how_to_get(task: NamedTask) -> str:
    """Return the sentence for a task that is not here."""
    return f"The task `{task.name}` is not here yet: `whetstone tasks get {task.name}` gets its data once."


def _folder(home: Path, task: NamedTask) -> Path:
    return home.joinpath(*FOLDER, task.folder_name)


def _view(task: NamedTask, home: Path) -> TaskListing:
    fields = {name: getattr(task, name) for name in TaskListing.model_fields if name != "path"}
    file = file_of(home, task)
    return TaskListing(**fields, path=str(file) if file else None)


def _by_hand(task: NamedTask) -> str:
    needed = " and ".join(task.files.values())
    return (
        f"Or bring the files: `whetstone tasks get {task.name} FOLDER` reads {needed} of the data set {task.data_set} "
        "below FOLDER."
    )


def _download(task: NamedTask, cache: Path, tell: Callable[[str], None]) -> dict[str, Path]:
    """Return split -> Parquet file below `cache`."""
    # 1. Ask for the pinned commit.
    endpoint = hub.endpoint_from_environment()
    source = hub.DataSetSource(task.data_set, task.revision, endpoint)
    if source.revision != task.revision:
        raise SourceUnreachable(f"{endpoint} answers with another commit of {task.data_set} than {task.revision[:8]}.")
    # 2. Check that the files are there, and how large they are.
    sizes = _sizes(task, source.sizes(), endpoint)
    tell(f"Getting {task.name}: {sum(sizes.values()) / 1e6:.1f} MB of {task.data_set} from {endpoint}.")
    # 3. Fetch what is not here from an earlier try.
    try:
        with files.disk_errors(cache):
            transfer.download(source, sizes, cache, lambda _: None, patience_s=PATIENCE_S, tell=tell, retry="try again")
    except (SourceDropped, InvalidModel) as error:  # a file that is gone, or shorter than the hub says
        raise SourceUnreachable(str(error)) from None
    return {split: cache / path for split, path in task.files.items()}


def _sizes(task: NamedTask, sizes: Mapping[str, int], endpoint: str) -> dict[str, int]:
    for path in task.files.values():
        if path not in sizes:
            raise SourceUnreachable(f"{endpoint} has no {path} in {task.data_set} at {task.revision[:8]}.")
        if sizes[path] > task_files.MAX_BYTES:
            raise SourceUnreachable(
                f"{endpoint} has {sizes[path] / 1e6:.0f} MB as {path} of {task.data_set}, which is not that data set."
            )
    return {path: sizes[path] for path in task.files.values()}


def _find_files(task: NamedTask, folder: str) -> dict[str, Path]:
    """Return split -> Parquet file below the folder, laid out as in the data set."""
    root = paths.find_folder(folder)
    if root is None:
        raise RequestError(f"There is no folder {folder[:200]}: give one that holds files of {task.data_set}.")
    present = {split: paths.find_file(str(root / path)) for split, path in task.files.items()}
    for split, file in present.items():
        if file is None:
            raise RequestError(
                f"{root} has no {task.files[split]}: put that file of the data set {task.data_set} there, in the same "
                "folders."
            )
    return {split: file for split, file in present.items() if file is not None}


def _write(task: NamedTask, parquet: Mapping[str, Path], place: Path) -> int:
    """Write the task's folder: the rows of every split and its file. Return the samples that an evaluation reads."""
    with files.staged_folder(place) as folder:
        for split, path in parquet.items():
            arguments = (str(path), list(task.columns), task.rows)
            rows = sandbox.run(task_rows.read, *arguments, about=path.name, cpu_s=READ_CPU_S)
            files.write(folder / f"{split}.jsonl", rows)
        head = HEAD.format(title=task.title, source=task.source, licence=task.licence)
        files.write(folder / f"{task.name}.yaml", head + recipe_files.write_yaml(task.config()))
        return task_files.read(folder / f"{task.name}.yaml").samples
