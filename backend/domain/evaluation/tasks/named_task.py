"""Tasks that are known by name: where their data is, its licence, and how lm-eval's own task of that name asks it.
Pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from backend.domain.evaluation.tasks import task_rules
from backend.domain.frozen import Frozen, digest

RowForm = Literal["stored", "hellaswag", "by subject"]
"""The preparation of a data set's rows: none, HellaSwag's cleaning, or one question of each subject in turn."""


class NamedTask(Frozen):
    """One row of the table. `floor` is the share that guessing reaches; `items` are those of the scored split."""

    name: str
    title: str
    prompts: str
    """The settings in the table that it shares with others of its kind."""
    data_set: str
    """Id on the hub, `org/name`."""
    revision: str
    """Commit of the data set."""
    configuration: str | None = None
    licence: str
    items: int
    floor: float
    columns: tuple[str, ...]
    rows: RowForm
    files: dict[str, str]
    """Split -> path of its Parquet file in the data set."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """lm-eval's settings, without those of the data."""

    @property
    def split(self) -> str:
        """Return the split whose samples are scored."""
        return str(task_rules.scored_split(self.settings))

    @property
    def source(self) -> str:
        """Return where the data is from: `allenai/ai2_arc@210d026f, ARC-Easy, test`."""
        parts = [f"{self.data_set}@{self.revision[:8]}", self.configuration, self.split]
        return ", ".join(part for part in parts if part)

    @property
    def folder_name(self) -> str:
        """Return the name of the folder in the home, which changes when anything in the row does."""
        return f"{self.name}-{digest(self.model_dump(mode='json'))[:12]}"

    def config(self) -> dict[str, Any]:
        """Return the settings of a task's file whose data lie beside it as SPLIT.jsonl."""
        described = {"floor": self.floor, "licence": self.licence, "source": self.source}
        return {
            "task": self.name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {split: f"{split}.jsonl" for split in self.files}},
            **self.settings,
            "metadata": {**self.settings.get("metadata", {}), **described},
        }
