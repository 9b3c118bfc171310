"""What a child process reads or makes of workloads (`backend.foreign`): it imports no more than that takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from backend.catalog.text import token_lengths
from backend.domain.errors import InvalidWorkload
from backend.domain.workload import formats, generators
from backend.domain.workload.workload import parse

SHOWN_ROWS = 5
CHARACTERS_A_TOKEN = 4
"""Of English, where no tokenizer is at hand."""


def convert(name: str, content: bytes, columns: dict[str, str]) -> bytes:
    """The content of the file `name` as our own JSONL. Raises InvalidWorkload with what is wrong first."""
    suffix = Path(name).suffix.lower()
    if suffix == ".csv":
        made = formats.from_table(formats.csv_rows(content), columns)
    elif suffix == ".parquet":
        made = formats.from_table(_table(name, content).to_pylist(), columns)
    else:
        made = formats.from_json(Path(name).stem, content, columns)
    parse(Path(name).stem, made)
    return made


def preview(name: str, content: bytes) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of a table, in order, or the fields of JSON in no known format, and the first rows; both empty otherwise."""
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        table = _table(name, content)
        return list(table.column_names), table.slice(0, SHOWN_ROWS).to_pylist() if table.column_names else []
    if suffix == ".csv":
        first = content.decode("utf-8-sig", "replace").partition("\n")[0].strip("\r")
        columns, rows = [column for column in formats.names(first) if column], formats.csv_rows
    else:
        columns, rows = formats.unknown_fields(content), formats.objects
    return columns, list(islice(rows(content), SHOWN_ROWS)) if columns else []


def generate(source: str, tokenizer: str | None, seed: int, context: int | None, prompts: int) -> bytes:
    """The lines of a generated workload, measured by that tokenizer.json, by characters where there is none."""

    def count(texts: Sequence[str]) -> list[int]:
        counted = token_lengths.count(tokenizer, list(texts)) if tokenizer else None
        return [length for length, _ in counted] if counted else [len(text) // CHARACTERS_A_TOKEN for text in texts]

    return generators.generate(source, count, seed=seed, context=context, prompts=prompts)


def _table(name: str, content: bytes) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
        table.column_names  # noqa: B018  a damaged name is found here
        return table
    except pyarrow.ArrowMemoryError:
        raise MemoryError from None
    except (pyarrow.ArrowException, OSError, ValueError):
        raise InvalidWorkload(f"{name} is not a Parquet file that can be read: write it anew.") from None
