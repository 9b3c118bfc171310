"""Which lm-eval tasks an evaluation is to score: bundled, by name, in a file or in a folder; and the copies that a job
works with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend import files
from backend import settings as configuration
from backend.domain import similar_names
from backend.domain.errors import EngineMissing
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.evaluation.tasks import task_rules
from backend.domain.figures import listed
from backend.domain.recipe import serving_engines
from backend.domain.roles import Action
from backend.hardware import engine_status
from backend.service import paths
from backend.service.tasks import named_tasks, task_files
from backend.service.tasks.task_files import SUFFIXES, InvalidTask, TaskFile
from backend.service.workspace import Workspace
from backend.settings import ASSETS

_FOLDER = ASSETS / "tasks"
MOST = 32
COPY = "task.json"
READ_TASKS = 8
"""Tasks by name whose check is remembered."""


def names() -> list[str]:
    """Return the names that can be given: of the table of named tasks, then those that are bundled."""
    return [*named_tasks.names(), *bundled_names()]


def bundled_names() -> list[str]:
    """Return the names of the bundled tasks."""
    return sorted(path.name for path in _FOLDER.iterdir() if path.is_dir())


def missing_packages(workspace: Workspace) -> str | None:
    """Return a sentence on how to install lm-eval; None if it is installed."""
    try:
        engine_status.engine_python(workspace.settings, "quality")
    except EngineMissing as error:
        return str(error)
    return None


def find(source: str, home: Path | None = None) -> list[TaskFile]:
    """The tasks that a name, a file or a folder means, each checked. `home`: where tasks by name are, else that of the
    environment. Raises InvalidTask."""
    # 1. A name goes before a folder or file of that name.
    if (named := named_tasks.find_named(source)) is not None:
        file = named_tasks.file_of(home or configuration.load().home, named)
        if file is None:
            raise InvalidTask(named_tasks.how_to_get(named))
        return [_read_named(file, files.stamp(file.parent))]
    bundled = _FOLDER / source if source in bundled_names() else None
    folder, file = bundled or paths.find_folder(source), paths.find_file(source)
    # 2. List the files.
    if folder is not None:
        task_paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
        if not task_paths:
            raise InvalidTask(f"The folder {folder.name} has no task: it needs a .yaml file of lm-eval.")
    elif file is not None and file.suffix.lower() in SUFFIXES:
        task_paths = [file]
    else:
        raise InvalidTask(_unknown(source))
    # 3. Read each.
    return [task_files.read(path) for path in task_paths]


@lru_cache(maxsize=READ_TASKS)
def _read_named(file: Path, stamp: str) -> TaskFile:
    """Read a task by name, again only where its folder has another stamp: a page asks for it at every click."""
    return task_files.read(file)


def _unknown(source: str) -> str:
    similar = similar_names.find_similar(source, names())
    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
    return (
        f"There is no task `{source[:200]}`: give a .yaml file of lm-eval, a folder of them, or one of "
        f"{', '.join(names())}.{hint}"
    )


def get_missing(workspace: Workspace, chosen: EvaluateOptions, tell: Callable[[str], None]) -> None:
    """Get the tasks by name that are not here yet, once lm-eval is. Raises EngineMissing, and as `named_tasks.get`
    does."""
    if chosen.tasks:
        _check_packages(workspace)
        named_tasks.get_missing(workspace, chosen.tasks, tell)


def _check_packages(workspace: Workspace) -> None:
    if (how := missing_packages(workspace)) is not None:
        raise EngineMissing(f"Tasks are scored by lm-eval. {how}")


def check(workspace: Workspace, chosen: EvaluateOptions, variants: Sequence[Variant]) -> list[TaskFile]:
    """Check the tasks before the start. Raises EngineMissing, InvalidTask."""
    if not chosen.tasks:
        return []
    # 1. Check the requirements.
    _check_packages(workspace)
    if all(variant.model_path is None for variant in variants):
        raise InvalidTask(
            "Tasks need a model's tokenizer, which an address does not give: add the model that it serves as a variant."
        )
    # 2. Read the tasks; their names must differ.
    task_list = [task for source in chosen.tasks for task in find(source, workspace.settings.home)]
    if len(task_list) > MOST:
        raise InvalidTask(f"{len(task_list)} tasks are too many for one evaluation: give at most {MOST}.")
    by_name: dict[str, TaskFile] = {}
    for task in task_list:
        if (other := by_name.setdefault(task.name, task)) is not task:
            raise InvalidTask(
                f"{other.source.name} and {task.source.name} are both called `{task.name}`: give one another name."
            )
    # 3. Every engine must be able to answer them.
    _check_engines(variants, task_list)
    return task_list


def _check_engines(variants: Sequence[Variant], task_list: Sequence[TaskFile]) -> None:
    """Refuse tasks that need the probabilities of a prompt's tokens, where a variant's server reports none."""
    likelihoods = [task.name for task in task_list if not task_rules.is_answered_in_text(task.config)]
    for variant in variants if likelihoods else ():
        if variant.serving.engine_name != "vllm":
            title = serving_engines.ENGINES[variant.serving.engine_name].title
            raise InvalidTask(
                f"{variant.name} is served by {title}, whose server here reports no probabilities of each token of a "
                f"prompt, by which {listed(likelihoods)} would be scored: leave that out, or serve it with vLLM. Tasks "
                "that are answered in text, such as gsm8k, can be scored."
            )


def gate_figures(chosen: EvaluateOptions) -> list[str]:
    """Return the figures that a quality gate may name: `task.TASK.METRIC`, or `task.TASK.METRIC,FILTER` for other
    filters. Raises InvalidTask."""
    configs = [config for source in chosen.tasks for config in _configs(source)]
    return [f"task.{config['task']}.{metric}" for config in configs for metric in task_rules.metric_names(config)]


def _configs(source: str) -> list[dict[str, Any]]:
    named = named_tasks.find_named(source)
    return [task.config for task in find(source)] if named is None else [named.config()]


def keep_copies(workspace: Workspace, task_list: Sequence[TaskFile]) -> tuple[str, ...]:
    """Copy the tasks into the home by hash and return the folders, so that later changes of the files do not matter."""
    workspace.check(Action.SUBMIT)
    return tuple(str(_keep_copy(workspace.settings.home / "tasks", task)) for task in task_list)


def _keep_copy(home: Path, task: TaskFile) -> Path:
    folder = home / f"{task.name}-{task.sha256[:32]}"
    if (folder / COPY).is_file():
        return folder
    with files.staged_folder(folder) as path:
        shutil.copyfile(task.source, path / "task.yaml")
        data = {
            split: [_copy(file, path / f"{split}-{number}.jsonl") for number, file in enumerate(data_files)]
            for split, data_files in task.data.items()
        }
        config = {**task.config, "dataset_kwargs": {"data_files": data}}
        document = {"name": task.name, "sha256": task.sha256, "samples": task.samples, "config": config}
        (path / COPY).write_text(json.dumps(document))
    return folder


def _copy(file: Path, to: Path) -> str:
    shutil.copyfile(file, to)
    return to.name
