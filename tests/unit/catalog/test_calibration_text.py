"""Reading calibration files: every form, and each thing that can be wrong with one, in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from backend import sandbox
from backend.catalog.text import calibration_text
from backend.domain.errors import InvalidModel, InvalidWorkload
from backend.settings import ASSETS
from tests.tiny import edit_json

STARTER = ASSETS / "starter" / "target"
MANY = "\n".join(f"def function_{number}(value):\n    return value + {number}" for number in range(200))


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def tabled(path: Path, **columns: list[Any]) -> str:
    parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_the_three_forms_hold_the_same_documents(tmp_path: Path) -> None:
    documents = ["first\nline", "second, with ü and \u2028 in it"]
    jsonl = written(tmp_path / "a.jsonl", [{"text": documents[0], "prompt": "not this"}, {"prompt": documents[1]}])
    table = tabled(tmp_path / "a.parquet", prompt=["not", "these"], text=documents)
    assert calibration_text.texts(jsonl) == calibration_text.texts(table) == documents
    plain = tmp_path / "a.txt"
    plain.write_bytes(b"\xef\xbb\xbf" + documents[1].encode())
    assert calibration_text.texts(str(plain)) == [documents[1]]


def test_blank_lines_and_empty_rows_are_left_out(tmp_path: Path) -> None:
    jsonl = tmp_path / "a.jsonl"
    jsonl.write_text('{"text": "one"}\n\n{"text": "  "}\n')
    assert calibration_text.texts(str(jsonl)) == ["one"]
    assert calibration_text.texts(tabled(tmp_path / "a.parquet", text=["one", None, ""])) == ["one"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"", r"a\.txt is empty: give"),
        ("a.jsonl", b"\n \n", "a.jsonl is empty: give"),
        ("a.txt", b"good\xff", r"a.txt is not UTF-8 text \(byte 4\): convert it"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', 'Line 2 of a.jsonl is not an object with "text" or "prompt"'),
        ("a.jsonl", b'{"text": 3}\n', "Line 1 of a.jsonl"),
        ("a.jsonl", b"[" * 100_000, "Line 1 of a.jsonl"),
        ("a.parquet", b"PAR1 and then nothing", "a.parquet is not a Parquet file that can be read"),
    ],
)
def test_a_file_that_will_not_do_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidWorkload, match=sentence) as caught:
        calibration_text.texts(str(tmp_path / name))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_a_table_without_text_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkload, match='has no column "text" or "prompt"'):
        calibration_text.texts(tabled(tmp_path / "a.parquet", words=["x"]))
    with pytest.raises(InvalidWorkload, match=r"The column `text` of b\.parquet is not text"):
        calibration_text.texts(tabled(tmp_path / "b.parquet", text=[1, 2]))
    with pytest.raises(InvalidWorkload, match=r"none.txt cannot be read \(No such file"):
        calibration_text.texts(str(tmp_path / "none.txt"))


def test_text_shorter_than_one_sequence_is_refused_with_its_tokens(tmp_path: Path) -> None:
    short = written(tmp_path / "a.jsonl", [{"text": "def f(): pass"}] * 3)
    with pytest.raises(InvalidWorkload, match=r"a.jsonl is only \d+ tokens, shorter than one sequence of 512"):
        calibration_text.check(short, STARTER, 512)
    calibration_text.check(short, STARTER, 8)
    with pytest.raises(InvalidWorkload, match="the bundled calibration text is only"):
        calibration_text.check(None, STARTER, 10_000_000)


def test_a_tokenizer_of_another_model_is_told_before_a_job_begins(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(STARTER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    calibration_text.check(None, folder, 64)
    edit_json(folder / "config.json", vocab_size=100)
    with pytest.raises(
        InvalidModel, match=r"^The tokenizer gives token \d+ and the model knows 100 .* beside config.json\.$"
    ):
        calibration_text.check(None, folder, 64)


def test_text_that_holds_the_held_out_text_is_refused(tmp_path: Path) -> None:
    held_out = calibration_text.HELD_OUT.read_text()
    mine = written(tmp_path / "a.jsonl", [{"text": MANY}])
    calibration_text.check(mine, STARTER, 64)
    observed = written(
        tmp_path / "b.jsonl", [{"text": MANY}, {"text": held_out[: len(held_out) // 5].replace(" ", "  ")}]
    )
    with pytest.raises(
        InvalidWorkload, match=r"b.jsonl holds \d+% of the held-out text .* so the report would flatter"
    ):
        calibration_text.check(observed, STARTER, 64)


def test_a_text_is_tokenized_once_for_each_file_and_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    whole = sandbox.run

    def counted(function: Any, path: str, *others: Any, **more: Any) -> Any:
        opened.append(path)
        return whole(function, path, *others, **more)

    monkeypatch.setattr(sandbox, "run", counted)
    folder = tmp_path / "model"
    shutil.copytree(STARTER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    mine = written(tmp_path / "a.jsonl", [{"text": MANY}])
    for _ in range(3):
        calibration_text.check(mine, folder, 64)
    assert len(opened) == 1
    written(tmp_path / "a.jsonl", [{"text": "short"}])
    for _ in range(2):
        with pytest.raises(InvalidWorkload, match=r"a.jsonl is only \d+ tokens"):
            calibration_text.check(mine, folder, 64)
    assert len(opened) == 2, "another file, and refused without a second look"
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + "\n")
    with pytest.raises(InvalidWorkload, match=r"a.jsonl is only"):
        calibration_text.check(mine, folder, 64)
    assert len(opened) == 3, "another tokenizer"
