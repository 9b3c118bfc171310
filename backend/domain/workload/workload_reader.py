"""The one reader of people's workloads: a file in any known format -> entries, each with its own line, row or place.
Pure.

What is checked here is what is sent: `write_lines` makes canonical lines of the entries, and the load generator reads
those alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from backend.domain.errors import InvalidWorkload
from backend.domain.workload import decoding, length_traces, row_parser, trace_times, workload
from backend.domain.workload.decoding import Row, plain_name
from backend.domain.workload.length_traces import MOONCAKE
from backend.domain.workload.row_parser import (
    ALPACA,
    CONVERSATIONS,
    FIELDS,
    INPUT_TOKENS,
    MAX_TOKENS,
    NOT_SENT,
    PROMPT_COLUMNS,
    TEXTS,
    TIMES,
    WorkloadEntry,
)
from backend.domain.workload.row_report import (
    NAMED_ROWS,
    ReadReport,
    RowUnit,
    UnusableRow,
    UnusedRow,
    require_enough_rows,
)
from backend.domain.workload.trace_times import TimeUnit


class ReadWorkload(NamedTuple):
    """`seconds` are the times of the entries, counted from the earliest; None where an entry has none."""

    entries: list[WorkloadEntry]
    seconds: list[float | None]
    reading: ReadReport


def read_json(
    name: str, content: bytes, columns: Mapping[str, str], *, time_unit: TimeUnit = "auto", timed: bool = True
) -> ReadWorkload:
    """Read JSON lines, or one JSON list. `timed`: the times are needed, so that their unit must be known.

    Raises InvalidWorkload where too many rows cannot be used, or the unit of times that are needed is not known.
    """
    unit, rows = decoding.parse_json_rows(name, decoding.decode_text(name, content))
    return _read(name, unit, rows, columns, time_unit, timed)


def read_csv(
    name: str, content: bytes, columns: Mapping[str, str], *, time_unit: TimeUnit = "auto", timed: bool = True
) -> ReadWorkload:
    """Read a table as text. As `read_json`."""
    table = decoding.parse_table(name, decoding.decode_text(name, content), _likely(columns))
    return read_table(name, table.names, table.rows, columns, time_unit=time_unit, timed=timed)


def read_table(
    name: str,
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any] | UnusableRow],
    columns: Mapping[str, str],
    *,
    time_unit: TimeUnit = "auto",
    timed: bool = True,
) -> ReadWorkload:
    """Read rows of a table with columns of these names. As `read_json`."""
    _check_columns(name, names, columns)
    return _read(name, "row", decoding.table_rows(iter(rows)), _guessed(name, names, columns), time_unit, timed)


def write_lines(result: ReadWorkload) -> bytes:
    """Our own lines (`workload.write_prompts`). Those of a trace of lengths have `input_tokens` and `hash_ids` for a
    prompt."""
    if result.reading.lengths is None:
        return workload.write_prompts(
            entry.prompt(second) for entry, second in zip(result.entries, result.seconds, strict=True)
        )
    rows = zip(result.entries, result.seconds, strict=True)
    return "".join(json.dumps(_length_row(entry, second)) + "\n" for entry, second in rows).encode("ascii")


def _length_row(entry: WorkloadEntry, second: float | None) -> dict[str, Any]:
    fields = {
        "input_tokens": entry.input_tokens,
        "hash_ids": entry.blocks,
        "max_tokens": entry.max_tokens,
        "timestamp": second,
        "kind": entry.kind,
    }
    return {name: value for name, value in fields.items() if value is not None}


def csv_rows(name: str, content: bytes) -> Iterator[dict[str, Any]]:
    """The rows of a table as text, blank ones too. Raises InvalidWorkload."""
    rows = decoding.parse_table(name, decoding.decode_text(name, content), _likely({})).rows
    return (row for row in rows if not isinstance(row, UnusableRow))


def prompt_candidates(name: str, suffix: str, content: bytes) -> list[str]:
    """The columns, or fields of the first object, among which a person is to say which is the prompt.

    None where a known format says it, and of a trace of lengths. Raises InvalidWorkload.
    """
    # 1. A table: its columns.
    text = decoding.decode_text(name, content)
    if suffix in {".csv", ".tsv"}:
        names = [column for column in decoding.parse_table(name, text, _likely({})).names if column]
        return [] if _is_lengths({plain_name(column) for column in names}) else names
    # 2. JSON: the plain fields of the first object.
    first = next(
        (row.document for row in decoding.parse_json_rows(name, text)[1] if isinstance(row.document, dict)), {}
    )
    known = {plain_name(field) for field in first}
    if known & TEXTS or _is_lengths(known):
        return []
    return [field for field in first if isinstance(first[field], str | int | float)]


def first_objects(name: str, content: bytes, most: int) -> list[dict[str, Any]]:
    """The first objects of JSON lines or of a JSON list. Raises InvalidWorkload."""
    rows = decoding.parse_json_rows(name, decoding.decode_text(name, content))[1]
    return list(islice((row.document for row in rows if isinstance(row.document, dict)), most))


def _read(
    name: str, unit: RowUnit, rows: Sequence[Row], columns: Mapping[str, str], time_unit: TimeUnit, timed: bool
) -> ReadWorkload:
    unknown = set(columns) - set(FIELDS)
    if unknown:
        raise InvalidWorkload(f"`{min(unknown)}` is not a field of a workload: the fields are {', '.join(FIELDS)}.")
    # 1. Each row by itself.
    unusable: dict[int, str] = {}
    entries: list[WorkloadEntry] = []
    for row in rows:
        try:
            entries.append(row_parser.parse_row(row, columns))
        except UnusableRow as why:
            unusable[row.number] = why.reason
    # 2. What only all rows together can say: the unit of their times, the size of their blocks.
    unusable |= _of_other_kind(entries)
    block_size, misfits = length_traces.infer_block_size([(entry.input_tokens, entry.blocks) for entry in entries])
    unusable |= {entries[place].number: why for place, why in misfits.items()}
    if len(unusable) * 10 <= len(rows):
        of_format = _unit_of_format(rows)
        read_times = trace_times.read_times(name, [entry.time for entry in entries], time_unit, of_format, needed=timed)
    else:
        read_times = trace_times.Times([None] * len(entries), None)
    for entry, second in zip(entries, read_times.seconds, strict=True):
        if isinstance(second, UnusableRow):
            unusable.setdefault(entry.number, second.reason)
    # 3. What is left, if it is enough.
    used = [
        (entry, second)
        for entry, second in zip(entries, read_times.seconds, strict=True)
        if entry.number not in unusable and not isinstance(second, UnusableRow)
    ]
    _check_texts(name, [entry for entry, _ in used], columns)
    reading = _reading(unit, len(rows), unusable, used, read_times.unit, block_size)
    require_enough_rows(name, reading)
    return ReadWorkload([entry for entry, _ in used], [second for _, second in used], reading)


def _check_texts(name: str, entries: Sequence[WorkloadEntry], columns: Mapping[str, str]) -> None:
    """Raises InvalidWorkload where the column of prompts holds nothing but numbers, such as ids or lengths."""
    texts = [turn for entry in entries for turn in entry.turns]
    if "prompt" in columns and texts and all(text.strip().replace(".", "", 1).isdecimal() for text in texts):
        raise InvalidWorkload(
            f"`{columns['prompt'][:80]}` of {name} holds numbers and no text: name another column with {{}}, as "
            "prompt=COLUMN, "
            "or as input_tokens=COLUMN where these are the lengths of prompts.",
            "columns",
        )


def _of_other_kind(entries: Sequence[WorkloadEntry]) -> dict[int, str]:
    """Rows that have text where most have a length alone, or the other way round, by number."""
    texts = [entry.number for entry in entries if entry.input_tokens is None]
    lengths = [entry.number for entry in entries if entry.input_tokens is not None]
    if len(lengths) > len(texts):
        return dict.fromkeys(texts, "it has a text, and other rows have lengths alone")
    return dict.fromkeys(lengths if texts else [], "it has a length alone, and other rows have texts")


def _reading(
    unit: RowUnit,
    rows: int,
    unusable: Mapping[int, str],
    used: Sequence[tuple[WorkloadEntry, float | None]],
    time_unit: str | None,
    block_size: int | None,
) -> ReadReport:
    # Times count only if every row that is used has one.
    named = tuple(UnusedRow(number=number, reason=unusable[number]) for number in sorted(unusable)[:NAMED_ROWS])
    seconds = [second for _, second in used if second is not None]
    timed = bool(used) and len(seconds) == len(used)
    lengths = [entry.input_tokens for entry, _ in used if entry.input_tokens is not None]
    return ReadReport(
        unit=unit,
        rows=rows,
        left_out=len(unusable),
        named=named,
        times=time_unit if timed or time_unit == trace_times.UNCLEAR else None,
        seconds=max(seconds) - min(seconds) if timed else None,
        lengths=(min(lengths), max(lengths)) if lengths else None,
        block_size=block_size,
        settings_left_out=tuple(field for field in NOT_SENT if any(field in entry.not_sent for entry, _ in used)),
    )


def _unit_of_format(rows: Sequence[Row]) -> TimeUnit:
    """Milliseconds of Mooncake's traces, seconds of others that have a format of their own; `auto` where nothing says
    it."""
    first = next((row.document for row in rows if isinstance(row.document, dict)), {})
    names = {plain_name(field) for field in first}
    if names & MOONCAKE:
        return "ms"
    return (
        "s" if names & {"arrived_at", "arrival_timestamp"} or {"request_tokens", "response_tokens"} <= names else "auto"
    )


def _is_lengths(names: set[str]) -> bool:
    """Tell whether these are the fields of a trace of lengths, without texts."""
    return bool(names & set(INPUT_TOKENS)) and not names & {*TEXTS, *PROMPT_COLUMNS}


def _likely(columns: Mapping[str, str]) -> set[str]:
    """Plain names of columns that a table is likely to have."""
    return {
        *PROMPT_COLUMNS,
        *CONVERSATIONS,
        "turns",
        *INPUT_TOKENS,
        *MAX_TOKENS,
        *TIMES,
        *map(plain_name, columns.values()),
    }


def _guessed(name: str, names: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of a table: those that were named, and the column of prompts where it was not. Raises
    InvalidWorkload."""
    # 1. Columns that the person named, and a trace of lengths.
    known = {plain_name(column) for column in names}
    if {"prompt", "input_tokens"} & set(columns) or _is_lengths(known):
        return dict(columns)
    # 2. Known names of prompts and conversations.
    if {"instruction", "input"} <= known and "prompt" not in known:
        return {**columns, "prompt": ALPACA}
    prompt = next((candidate for candidate in PROMPT_COLUMNS if candidate in known), None)
    if prompt is not None:
        return {**columns, "prompt": prompt}
    if known & {*CONVERSATIONS, "turns"}:
        return dict(columns)
    # 3. None: the person must say.
    shown = ", ".join(sorted(names)[:10])
    raise InvalidWorkload(
        f"None of the columns of {name} ({shown}) is known as the prompt: name it with {{}}, as prompt=COLUMN, or as "
        "input_tokens=COLUMN where it holds the lengths of prompts.",
        "columns",
    )


def _check_columns(name: str, names: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raises InvalidWorkload where a column that was named is not there, or a known one is there twice."""
    there = [plain_name(column) for column in names]
    for column in columns.values():
        if column not in names and plain_name(column) not in there:
            raise InvalidWorkload(f"{name} has no column `{column[:80]}`: its columns are {', '.join(names[:20])}.")
    twice = next(
        (column for column in names if there.count(plain_name(column)) > 1 and plain_name(column) in _likely(columns)),
        None,
    )
    if twice is not None:
        raise InvalidWorkload(f"{name} has two columns called `{twice}`: rename one of them.")
