"""Whatever JSON and CSV allow inside a file is one row, is checked once, and is sent as it was checked."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.domain.errors import InvalidWorkload
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.domain.workload import decoding
from backend.domain.workload.row_report import UnusableRow
from backend.domain.workload.workload import parse_workload
from backend.domain.workload.workload_reader import read_csv, read_json, write_lines
from backend.endpoint import parse_address
from backend.evaluate.load.payload import Payloads, read_prompts

ODD = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\x1f\ufeff\r\n\t \\\"'a,;|é\U0001f600"
TEXTS = st.text(st.sampled_from(ODD) | st.characters(codec="utf-8"), min_size=1, max_size=12)
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", " \r\n"])
HEADS = st.sampled_from([b"", b"\xef\xbb\xbf"])


@given(st.lists(st.tuples(TEXTS, st.booleans(), ENDS), min_size=1, max_size=8), HEADS)
@example([("a\u2028b", False, "\n")], b"\xef\xbb\xbf")
def test_any_lines_that_json_reads_are_sent_as_they_were_checked(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, bool, str]], head: bytes
) -> None:
    """Down to the bytes of the request, through the file that the load generator reads."""
    text = "".join(json.dumps({"prompt": prompt}, ensure_ascii=escaped) + end for prompt, escaped, end in rows)
    prompts = [json.loads(line)["prompt"] for line in text.split("\n") if line.strip()]
    canonical = write_lines(read_json("w", head + text.encode(), {}))
    assert canonical.isascii() and len(canonical.splitlines()) == canonical.count(b"\n") == len(prompts)
    assert sent(tmp_path_factory.getbasetemp() / "w.jsonl", canonical) == prompts
    assert write_lines(read_json("w", canonical, {})) == canonical, "our own lines are read as they are"


def sent(file: Path, content: bytes) -> list[str]:
    """The prompts of the requests that the load generator makes of a file."""
    file.write_bytes(content)
    plan = LoadPlan(url="http://h:1", model="m", load=Load("closed", 1), requests=1, prompts=str(file))
    payloads = Payloads(plan, read_prompts(file), parse_address(plan.url), None, "none")
    bodies = [payloads.request(number, None).partition(b"\r\n\r\n")[2] for number in range(payloads.count)]
    return [json.loads(body)["prompt"] for body in bodies]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["prompt", "turns", "system", "max_tokens", "timestamp", "messages", "body", "input_tokens", "kind"]
)


@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=5) | JSON, min_size=1, max_size=5))
def test_any_documents_are_read_or_refused_with_their_lines(documents: list[Any]) -> None:
    """Lone halves of characters, numbers for texts, anything: no row is lost without being counted."""
    content = "".join(json.dumps(document) + "\n" for document in documents).encode()
    try:
        result = read_json("w", content, {})
    except InvalidWorkload:
        return
    assert len(result.entries) + result.reading.left_out == result.reading.rows == len(documents)
    if result.reading.lengths is None:
        assert len(parse_workload("w", write_lines(result)).prompts) == len(result.entries)


CELLS = st.text(st.sampled_from(ODD) | st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(
    st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    HEADS,
)
def test_any_table_that_the_csv_module_writes_comes_back_row_by_row(
    rows: list[tuple[str, str]], separator: str, quoting: Any, head: bytes
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, quoting=quoting)
    writer.writerow(["prompt", "note"])
    writer.writerows(rows)
    content = head + text.getvalue().encode()
    table = decoding.parse_table("w", decoding.decode_text("w", content), {"prompt"})
    read = [row for row in table.rows if not isinstance(row, UnusableRow)]
    assert [(row["prompt"] or "", row["note"] or "") for row in read] == rows
    # A row is blank, and left out, only if all its cells are.
    used = [prompt for prompt, note in rows if prompt.strip() or note.strip()]
    if used and all(prompt and not prompt.strip().replace(".", "", 1).isdecimal() for prompt in used):
        assert [entry.turns for entry in read_csv("w", content, {}).entries] == [(prompt,) for prompt in used]


@given(st.binary(max_size=60), st.sampled_from(["jsonl", "csv"]))
def test_any_bytes_are_read_or_refused_in_a_sentence(content: bytes, kind: str) -> None:
    try:
        result = read_csv("w", content, {}) if kind == "csv" else read_json("w", content, {})
    except InvalidWorkload as error:
        assert "\n" not in str(error)
    else:
        assert result.entries
