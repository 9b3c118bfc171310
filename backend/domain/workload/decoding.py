"""The bytes of a workload's file -> its rows: lines of JSON, a JSON list, or a table. Pure; reads no files.

Text is UTF-8 or, with its mark, UTF-16 as Windows writes it. A line of JSON ends at \\n (a file without any: at \\r),
and nowhere else: JSON may hold U+2028, U+2029 and U+0085 as they are. Rows of a table end as the csv module reads them,
so that a quoted cell may hold lines.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from backend.domain.errors import InvalidWorkload
from backend.domain.workload.row_report import RowUnit, UnusableRow
from backend.domain.workload.workload import LONGEST_LINE, MOST_LINES

SEPARATORS = ",;\t|"
MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
MOST_CELL = 2**30
NOT_JSON = "it is not JSON"


class Row(NamedTuple):
    """`number` is from 1; `document` what stands there, or why it cannot be read."""

    number: int
    document: Any | UnusableRow


class Table(NamedTuple):
    names: list[str]
    """Names of the columns, as the first row writes them."""
    rows: Iterator[dict[str, str | None] | UnusableRow]
    """Blank ones too, whose cells are all empty."""


def decode_text(name: str, content: bytes) -> str:
    """The text of a file, without its mark. Raises InvalidWorkload where it is neither UTF-8 nor marked UTF-16."""
    # 1. The encoding that its mark says.
    encoding = next((encoding for mark, encoding in MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        written = "UTF-16" if encoding == "utf-16" else "UTF-8"
        line = content[: error.start].count(b"\n") + 1
        raise InvalidWorkload(
            f"{name} is not {written} text (line {line}, byte {error.start + 1}): save it as UTF-8."
        ) from None
    # 2. Text of another encoding that decodes by chance.
    if "\0" in text[:1000]:
        raise InvalidWorkload(
            f"{name} is not UTF-8 text (it has zero bytes, as UTF-16 without its mark): save it as UTF-8."
        )
    return text


def parse_json_rows(name: str, text: str) -> tuple[RowUnit, list[Row]]:
    """The rows of JSON lines or of a JSON list, without blank lines. Raises InvalidWorkload."""
    if not text.lstrip("\ufeff \t\r\n").startswith("["):
        return "line", list(_lines(name, text))
    try:
        listed = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidWorkload(f"{name} is not JSON{where}: give a list of objects, or one object a line.") from None
    if len(listed) > MOST_LINES:
        raise _too_many(name)
    return "entry", [Row(number, document) for number, document in enumerate(listed, 1)]


def _lines(name: str, text: str) -> Iterator[Row]:
    """Each line that is not blank."""
    lines = text.split("\n")
    if len(lines) == 1 and _fails(text):
        lines = text.split("\r")  # as old Macintosh programs end lines
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            raise InvalidWorkload(f"{name} has a line of more than {LONGEST_LINE // 1_000_000} MB: take a sample.")
        stripped = line.strip("\ufeff \t\r")
        if not stripped:
            continue
        if number > MOST_LINES:
            raise _too_many(name)
        yield Row(number, _document(stripped))


def _fails(text: str) -> bool:
    return isinstance(_document(text.strip("\ufeff \t\r")), UnusableRow)


def _document(line: str) -> Any | UnusableRow:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return UnusableRow(f"{NOT_JSON} (column {error.colno}: {error.msg})")
    except (ValueError, RecursionError):
        return UnusableRow(NOT_JSON)


def parse_table(name: str, text: str, likely_names: Collection[str]) -> Table:
    """Read a table with a first row of names. `likely_names`: plain names (`plain_name`), of which it probably has one.

    Its separator is the one in Excel's own first line `sep=;`, else the first of SEPARATORS that separates such a name,
    else the one that gives most columns. Raises InvalidWorkload, also while rows are taken.
    """
    csv.field_size_limit(MOST_CELL)
    separator_line = re.match(r"sep=([,;\t|])\r?\n", text)
    if separator_line:
        text = text[separator_line.end() :]
    records = _records(name, text, separator_line[1] if separator_line else _separator(text, likely_names))
    names = [column.strip() for column in next(records, [])]
    return Table(names, _table_rows(name, names, records))


def _separator(text: str, likely_names: Collection[str]) -> str:
    """Return the separator of the row of names."""
    rows = {separator: _first_record(text, separator) for separator in SEPARATORS}
    for separator, names in rows.items():
        if any(plain_name(column) in likely_names for column in names):
            return separator
    return max(SEPARATORS, key=lambda separator: len(rows[separator]))


def _first_record(text: str, separator: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    except csv.Error:
        return []


def _records(name: str, text: str, separator: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    except csv.Error as error:
        raise InvalidWorkload(f"{name} is not a table as CSV files have it ({error}): check its quotes.") from None


def _table_rows(
    name: str, names: list[str], records: Iterator[list[str]]
) -> Iterator[dict[str, str | None] | UnusableRow]:
    """Cells by name; a cell that is empty or not there is None."""
    for number, cells in enumerate(records, 1):
        if number > MOST_LINES:
            raise _too_many(name)
        if any(cell.strip() for cell in cells[len(names) :]):
            yield UnusableRow("it has more cells than the table has columns, so its text needs quotes")
        else:
            yield dict.fromkeys(names) | {column: cell or None for column, cell in zip(names, cells, strict=False)}


def table_rows(rows: Iterator[Mapping[str, Any] | UnusableRow]) -> list[Row]:
    """Numbered, without those whose cells are all empty, as spreadsheets leave at the end."""
    return [
        Row(number, row) for number, row in enumerate(rows, 1) if isinstance(row, UnusableRow) or not _is_blank(row)
    ]


def _is_blank(row: Mapping[str, Any]) -> bool:
    return all(value is None or (isinstance(value, str) and not value.strip()) for value in row.values())


def plain_name(name: str) -> str:
    """A name of a field without differences in writing: `Max Tokens` is `max_tokens`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def plain_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are there, by plain name; a field that is written plainly goes before others of the same name."""
    there = {name: value for name, value in row.items() if value is not None and not _is_nan(value)}
    return {plain_name(name): value for name, value in there.items()} | {
        k: v for k, v in there.items() if plain_name(k) == k
    }


def _is_nan(value: Any) -> bool:
    """Tell whether a value is NaN, with which tables of pandas mark a missing one."""
    return isinstance(value, float) and math.isnan(value)


def _too_many(name: str) -> InvalidWorkload:
    return InvalidWorkload(f"{name} has more than {MOST_LINES:,} rows: take a sample.")
