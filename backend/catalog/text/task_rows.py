"""Turns a data set's Parquet file into the rows of a task, one JSON object a line, in the sandbox.

HellaSwag's rows are prepared as lm-eval's task of that name does it: the question is the activity, a colon and the
context; brackets, which WikiHow's markup left, are taken out, and a title's mark ends a sentence.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from backend.domain.errors import RequestError
from backend.domain.evaluation.tasks.named_task import RowForm

Row = dict[str, Any]
TITLE, BRACKETS = " [title]", re.compile(r"\[.*?\]")
MOST_ROWS = 1_000_000


def read(path: str, columns: list[str], form: RowForm) -> bytes:
    """Return the columns of every row as JSON lines, in the order of the file or by subject.

    Raises RequestError for a file that is no Parquet, lacks a column, or has no rows.
    """
    # 1. Read the columns.
    file = Path(path)
    rows = _rows(file, columns)
    if not rows:
        raise RequestError(f"{file.name} has no rows: get it anew.")
    # 2. Prepare the rows, and write a line for each.
    try:
        prepared = PREPARATIONS[form](rows)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise RequestError(f"{file.name} has rows of another form than its data set's card says.") from None
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in prepared).encode()


def _rows(file: Path, columns: list[str]) -> list[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            missing = [name for name in columns if name not in opened.schema_arrow.names]
            if missing:
                raise RequestError(
                    f"{file.name} has no column `{missing[0]}`, which its data set's card names: get it anew."
                )
            if opened.metadata.num_rows > MOST_ROWS:
                raise RequestError(f"{file.name} has more than {MOST_ROWS:,} rows: take a sample.")
            rows: list[Row] = opened.read(columns=columns).to_pylist()
            return rows
    except pyarrow.ArrowMemoryError:
        raise MemoryError from None
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).partition("\n")[0].rstrip(".")
        raise RequestError(f"{file.name} is not a Parquet file that can be read ({first}): get it anew.") from None


def _as_stored(rows: list[Row]) -> list[Row]:
    return rows


def _hellaswag(rows: list[Row]) -> list[Row]:
    return [
        {
            "query": _clean(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"),
            "choices": [_clean(ending) for ending in row["endings"]],
            "label": int(row["label"]),
        }
        for row in rows
    ]


def _clean(text: str) -> str:
    return BRACKETS.sub("", text.strip().replace(TITLE, ". ")).replace("  ", " ")


def _by_subject(rows: list[Row]) -> list[Row]:
    subjects: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        subjects[row["subject"]].append(row)
    return [row for row in chain.from_iterable(zip_longest(*subjects.values())) if row is not None]


PREPARATIONS = {"stored": _as_stored, "hellaswag": _hellaswag, "by subject": _by_subject}
