"""Small data sets in the shapes that the hub publishes (columns, types and files of allenai/ai2_arc, Rowan/hellaswag,
baber/piqa, cais/mmlu and openai/gsm8k), with rows of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from backend.catalog.bundled import named_tasks

CHOICES = pyarrow.struct([("text", pyarrow.list_(pyarrow.string())), ("label", pyarrow.list_(pyarrow.string()))])
TEXT, TEXTS, WHOLE = pyarrow.string(), pyarrow.list_(pyarrow.string()), pyarrow.int64()
SCHEMAS = {
    "allenai/ai2_arc": [("id", TEXT), ("question", TEXT), ("choices", CHOICES), ("answerKey", TEXT)],
    "Rowan/hellaswag": [
        ("ind", pyarrow.int32()),
        *[(name, TEXT) for name in ("activity_label", "ctx_a", "ctx_b", "ctx")],
        ("endings", TEXTS),
        *[(name, TEXT) for name in ("source_id", "split", "split_type", "label")],
    ],
    "baber/piqa": [("goal", TEXT), ("sol1", TEXT), ("sol2", TEXT), ("label", WHOLE)],
    "cais/mmlu": [("question", TEXT), ("subject", TEXT), ("choices", TEXTS), ("answer", WHOLE)],
    "openai/gsm8k": [("question", TEXT), ("answer", TEXT)],
}
COUNT = 24
SUBJECTS = ("abstract_algebra", "high_school_physics", "world_religions")


def store(root: Path, data_set: str) -> None:
    """Write every file that the table names of the data set below `root`/datasets, at its pinned commit."""
    tasks = [task for task in named_tasks.load().values() if task.data_set == data_set]
    folder = root / "datasets" / data_set
    for task in tasks:
        for split, path in task.files.items():
            write(folder / path, data_set, rows(data_set, split))
    (folder / ".repo.json").write_text(json.dumps({"sha": tasks[0].revision, "licence": "mit"}))


def write(path: Path, data_set: str, values: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(values, pyarrow.schema(SCHEMAS[data_set])), path)


def rows(data_set: str, split: str) -> list[dict[str, Any]]:
    return [ROWS[data_set](number, split) for number in range(COUNT)]


def _arc(number: int, split: str) -> dict[str, Any]:
    """Mostly four choices; every sixth question has three or five, and every fifth has digits for letters."""
    count = {0: 3, 6: 5}.get(number % 12, 4)
    labels = "12345" if number % 5 == 0 else "ABCDE"
    texts = [f"{number * place} stones" for place in range(1, count + 1)]
    choices = {"text": texts, "label": [*labels[:count]]}
    question = f"One pile has {number} stones. How many have {1 + number % 3} piles?"
    return {"id": f"{split}-{number}", "question": question, "choices": choices, "answerKey": labels[number % 3]}


def _hellaswag(number: int, split: str) -> dict[str, Any]:
    written = number % 2 == 1
    ctx_a = (
        f"[header] How to fold sheet {number} [title] Lay it down. [step] Keep it  flat." if written else "A man runs."
    )
    ctx_b = "" if written else "he"
    endings = [
        f" [substeps] Fold it {place} times.  Then press." if written else f"falls {place} times." for place in "0123"
    ]
    return {
        "ind": number,
        "activity_label": "Home and Garden" if written else "Running a marathon",
        "ctx_a": ctx_a,
        "ctx_b": ctx_b,
        "ctx": f"{ctx_a} {ctx_b}",
        "endings": endings,
        "source_id": f"own~{number}",
        "split": "val",
        "split_type": "indomain",
        "label": str(number % 4),
    }


def _piqa(number: int, split: str) -> dict[str, Any]:
    return {"goal": f"carry {number} cups", "sol1": "Use a tray.", "sol2": "Use a sieve.", "label": number % 2}


def _mmlu(number: int, split: str) -> dict[str, Any]:
    subject = SUBJECTS[number * len(SUBJECTS) // COUNT]
    choices = [str(number + place) for place in range(4)]
    return {"question": f" Which number is {number}? ", "subject": subject, "choices": choices, "answer": 0}


def _gsm8k(number: int, split: str) -> dict[str, Any]:
    question = f"Ann has {number} pears and buys {number} more ({split}). How many has she?"
    return {
        "question": question,
        "answer": f"{number} + {number} = <<{number}+{number}={2 * number}>>{2 * number}\n#### {2 * number}",
    }


ROWS = {
    "allenai/ai2_arc": _arc,
    "Rowan/hellaswag": _hellaswag,
    "baber/piqa": _piqa,
    "cais/mmlu": _mmlu,
    "openai/gsm8k": _gsm8k,
}
