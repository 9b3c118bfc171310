"""Reads and generates workloads in the sandbox, with as few imports as possible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from backend.catalog.text import token_lengths
from backend.domain.errors import InvalidWorkload
from backend.domain.workload import generators, length_traces, workload_reader
from backend.domain.workload.trace_times import TimeUnit
from backend.domain.workload.workload import Prompt, write_prompts

SHOWN_ROWS = 5
TABLES = (".csv", ".tsv")
CHARACTERS_A_TOKEN = 4
"""Characters per token of English, for use without a tokenizer."""


def read(name: str, content: bytes, columns: dict[str, str], time_unit: TimeUnit, timed: bool) -> bytes:
    """Read the content of the file `name` into our own form: a line with its Reading, then its rows
    (`workload_reader.written`).

    `timed`: its times are needed. Raises InvalidWorkload with what is wrong.
    """
    suffix = Path(name).suffix.lower()
    if suffix in TABLES:
        workload = workload_reader.read_csv(name, content, columns, time_unit=time_unit, timed=timed)
    elif suffix == ".parquet":
        table = _table(name, content)
        rows = iter(table.to_pylist())
        workload = workload_reader.read_table(name, table.column_names, rows, columns, time_unit=time_unit, timed=timed)
    else:
        workload = workload_reader.read_json(name, content, columns, time_unit=time_unit, timed=timed)
    return workload.reading.model_dump_json().encode() + b"\n" + workload_reader.write_lines(workload)


def make_prompts(name: str, content: bytes, block_size: int | None, seed: int, tokenizer: str | None) -> bytes:
    """Our own lines of those of a trace of lengths, as `read` wrote them: each with a prompt of its length.

    Lengths are by that tokenizer.json, by characters where there is none. Raises InvalidWorkload where they are too
    many.
    """
    rows = [json.loads(line) for line in content.splitlines()]
    lengths = [(row.pop("input_tokens"), row.pop("hash_ids", None)) for row in rows]
    length_traces.require_made_size(name, [tokens for tokens, _ in lengths])
    prompts = length_traces.make_prompts(lengths, block_size, seed, _counter(tokenizer))
    return write_prompts(Prompt(prompt=prompt, **row) for prompt, row in zip(prompts, rows, strict=True))


def preview(name: str, content: bytes) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of a table, in order, or the fields of JSON, among which the prompt is to be named, and the first
    rows.

    Both empty where the format says which is the prompt.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        table = _table(name, content)
        return list(table.column_names), table.slice(0, SHOWN_ROWS).to_pylist() if table.column_names else []
    # Without candidates, the format itself says which is the prompt.
    columns = workload_reader.prompt_candidates(name, suffix if suffix in TABLES else ".json", content)
    if not columns:
        return [], []
    if suffix in TABLES:
        return columns, list(islice(workload_reader.csv_rows(name, content), SHOWN_ROWS))
    return columns, workload_reader.first_objects(name, content, SHOWN_ROWS)


def generate(source: str, tokenizer: str | None, seed: int, context: int | None, prompts: int) -> bytes:
    """The lines of a generated workload, measured by that tokenizer.json, by characters where there is none."""
    return generators.generate(source, _counter(tokenizer), seed=seed, context=context, prompts=prompts)


def _counter(tokenizer: str | None) -> generators.TokenCounter:
    """Tokens of texts by that tokenizer.json, by characters where there is none."""

    def count(texts: Sequence[str]) -> list[int]:
        counted = token_lengths.count(tokenizer, list(texts)) if tokenizer else None
        return [length for length, _ in counted] if counted else [len(text) // CHARACTERS_A_TOKEN for text in texts]

    return count


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
