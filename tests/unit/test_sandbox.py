"""Small files that stand for gigabytes or hours: each is refused in a sentence, soon, and without a trace in this
process."""

from __future__ import annotations

import importlib
import json
import os
import resource
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from backend import sandbox
from backend.catalog.cards import gguf, import_record, safetensors_header, tokenizer_hash
from backend.catalog.cards.card import read_card
from backend.catalog.text import calibration_text, held_out_text, token_lengths
from backend.domain.errors import InvalidModel, InvalidWorkload, RequestError, TooDemanding
from backend.domain.evaluation.document import Variant
from backend.service.evaluations import workload_files, workloads
from backend.service.tasks import task_files
from backend.service.tasks.task_files import InvalidTask
from tests.tiny import byte_tokenizer, tiny_llama

pytestmark = pytest.mark.process
LONGEST_S = 120.0
"""Beside other tests; the limits themselves are in `sandbox`."""


@pytest.fixture(autouse=True)
def soon_and_small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """And less patient than with a person's files: what stands for hours comes to a limit of two seconds too."""
    monkeypatch.setattr(sandbox, "CPU_S", 2)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    yield
    assert time.monotonic() - began < LONGEST_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000  # kilobytes


def expanding(folder: Path) -> Path:
    """A tokenizer whose normalizer makes each character four, twenty times over."""
    byte_tokenizer(folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    step = {"type": "Replace", "pattern": {"Regex": "a"}, "content": "aaaa"}
    document["normalizer"] = {"type": "Sequence", "normalizers": [step] * 20}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def test_a_tokenizer_that_expands_text_without_end(tmp_path: Path) -> None:
    with pytest.raises(TooDemanding, match=r"tokenizer.json of .* cannot be read within 3 GiB of memory and 2 s"):
        token_lengths.lengths(expanding(tmp_path), ["a" * 100])


def test_a_pattern_that_makes_the_library_panic(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(?:a+)+$"}, "content": ""}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with suppress(TooDemanding):
        token_lengths.lengths(tmp_path, ["a" * 60 + "b"])  # read or not, this process goes on


def parquet(rows: int, name: str = "prompt") -> bytes:
    """One text again and again, which the format writes once: some kilobytes whatever the rows."""
    column = pyarrow.DictionaryArray.from_arrays(
        pyarrow.Array.from_buffers(pyarrow.int8(), rows, [None, pyarrow.py_buffer(bytes(rows))]),
        pyarrow.array(["x" * 100]),
    )
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        pyarrow.table({name: column}), sink, compression="zstd", row_group_size=rows, store_schema=False
    )
    return sink.getvalue().to_pybytes()


def test_a_parquet_file_of_a_few_bytes_and_millions_of_rows(tmp_path: Path) -> None:
    content = parquet(20_000_000)
    assert len(content) < 300_000
    with pytest.raises(TooDemanding, match=r"bomb\.parquet cannot be read within"):
        workload_files.own_lines("bomb.parquet", content, {})
    with pytest.raises(TooDemanding, match=r"bomb\.parquet cannot be read within"):
        workload_files.preview("bomb.parquet", content)
    (tmp_path / "bomb.parquet").write_bytes(content)
    with pytest.raises(TooDemanding, match=r"bomb\.parquet cannot be read within"):
        calibration_text.texts(str(tmp_path / "bomb.parquet"))


def test_a_damaged_name_of_a_column() -> None:
    content = parquet(3, "PROMPTNAME").replace(b"PROMPTNAME", b"\xff\xfeOMPTNAME")
    with pytest.raises(RequestError, match=r"bad\.parquet"):
        workload_files.own_lines("bad.parquet", content, {})
    with pytest.raises(RequestError, match=r"bad\.parquet"):
        workload_files.preview("bad.parquet", content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt": "a"}\n' * 700_000,
        b'{"prompt": "' + b"a" * 17_000_000 + b'"}\n',
        b'{"prompt": "a", "x": [' + b"[]," * 6_000_000 + b"[]]}\n",
    ],
    ids=["lines", "line", "junk"],
)
def test_lines_without_end(content: bytes) -> None:
    with pytest.raises(
        InvalidWorkload, match=r"more than 100,000 rows: take a sample|a line of more than 16 MB: take a sample"
    ):
        workload_files.own_lines("many.jsonl", content, {})


def test_a_table_of_commas() -> None:
    with pytest.raises(RequestError, match=r"None of the columns|cannot be read"):
        workload_files.own_lines("commas.csv", b"," * 3_000_000 + b"\n" + b"," * 3_000_000, {})


def safetensors(folder: Path, document: object) -> Path:
    header = json.dumps(document).encode() if not isinstance(document, bytes) else document
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder / "model.safetensors"


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({f"t{n}": EMPTY for n in range(300_000)}, "is cut off or claims an impossible size"),
        (
            {f"t{n}": {"shape": [], "dtype": "F4", "data_offsets": [0, 0]} for n in range(70_000)},
            "70,000 tensors where 65,536",
        ),
        ({"t": {**EMPTY, "shape": [10**4000] * 60}}, "no valid shape"),
        ({"t": {**EMPTY, "shape": [2**62, 2**62]}}, "do not match its shape"),
        ({"t": {**EMPTY, "shape": [1] * 100_000}}, "no valid shape"),
        (b"[" * 1_000_000, "not valid JSON"),
        (b'{"a": [' + b"[]," * 4_000_000 + b"[]]}", "is not an object"),
    ],
)
def test_headers_of_weights(tmp_path: Path, document: object, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        safetensors_header.read(safetensors(tmp_path, document))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b'{"x": "' + b" " * 4_000_000 + b'"}', "config.json has more than 4 MB"),
        ("config.json", b"[" * 1_000_000, "config.json is not valid JSON"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 0}}, "added_tokens": {"content": "b"}}', "is damaged"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": ["b"]}]}', "is damaged"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": [1]}}}', "tokenizer.json is damaged"),
        ("tokenizer.json", b"[" + b"[]," * 40_000_000 + b"[]]", "cannot be read within|tokenizer.json is damaged"),
    ],
)
def test_files_of_a_model_folder(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    tiny_llama(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=message):
        read_card(tmp_path)


def test_a_large_sound_tokenizer_is_read_in_a_child_to_the_same_hash(tmp_path: Path) -> None:
    document = {"model": {"vocab": {f"token-{number:09}": number for number in range(250_000)}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert (tmp_path / "tokenizer.json").stat().st_size > tokenizer_hash.HERE_BYTES
    assert tokenizer_hash.tokenizer_hash(tmp_path) == tokenizer_hash.of_file(str(tmp_path / "tokenizer.json"))


def gguf_head(count: int, keys: int) -> bytes:
    array = struct.pack("<IIQ", 9, 8, count) + struct.pack("<Q", 0) * count
    named = (struct.pack("<Q", 1) + letter.encode() + array for letter in "abcdefghij"[:keys])
    return b"GGUF" + struct.pack("<IQQ", 3, 1, keys) + b"".join(named)


@pytest.mark.parametrize("content", [gguf_head(1_000_000, 6), b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1)])
def test_the_head_of_a_gguf_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(InvalidModel, match=r"entries where .* are the most"):
        gguf.read_head(tmp_path / "x.gguf")


def test_a_length_beyond_any_file_in_a_gguf_head(tmp_path: Path) -> None:
    """Found by the fuzz test, seed 61."""
    array = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 2) + struct.pack("<QQ", 2**63, 0)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + array)
    with pytest.raises(InvalidModel, match="cut short or damaged"):
        gguf.read_head(tmp_path / "x.gguf")


BOMB = "a: &a [x, x]\n" + "".join(
    f"{c}: &{c} [*{p}, *{p}, *{p}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("content", [BOMB, "task: [" * 30_000, "#" * 200_000])
def test_the_settings_of_a_task(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(InvalidTask):
        task_files.read(tmp_path / "x.yaml")


@pytest.mark.parametrize("template", ["{{ 9**(9**9) }}", "{{ 'a' * 1500000000 }}"])
def test_what_a_template_of_a_task_computes_while_it_is_read(tmp_path: Path, template: str) -> None:
    """Jinja computes what is constant in it, though nothing is filled in."""
    (tmp_path / "rows.jsonl").write_text('{"a": "b"}\n')
    (tmp_path / "x.yaml").write_text(
        "task: x\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
        f'output_type: loglikelihood\ndoc_to_text: "{template}"\ndoc_to_target: "{{{{a}}}}"\n'
    )
    with pytest.raises(
        InvalidTask, match=r"The templates of the task x\.yaml cannot be read within 3 GiB of memory and 2 s"
    ):
        task_files.read(tmp_path / "x.yaml")


@pytest.mark.parametrize("name", tokenizer_hash.SETTINGS)
def test_a_large_file_beside_a_tokenizer(tmp_path: Path, name: str) -> None:
    """Refused by its size: as JSON, 150 MB of it took 3.7 GB."""
    folder = tiny_llama(tmp_path / "m")
    with (folder / name).open("wb") as opened:
        opened.truncate(150_000_000)
    with pytest.raises(InvalidModel, match=f"{name} has more than 16 MB"):
        read_card(folder)
    assert name.startswith("chat_template") or not held_out_text.has_template(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", import_record.FILE])
def test_a_pipe_in_place_of_a_file_of_a_model(tmp_path: Path, name: str) -> None:
    """Reading it would wait for whoever writes into it."""
    folder = tiny_llama(tmp_path / "m")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert not held_out_text.has_template(folder) and import_record.read(folder) is None
    context = workloads.context_tokens(Variant(name="m", source="m", kind="model", model_path=str(folder)))
    assert context == (None if name == "config.json" else 512)


def grow() -> int:
    return len(bytearray(8 * 2**30))


def spin() -> None:
    while True:
        pass


def end() -> None:
    os.abort()


def raise_refusal() -> list[Any]:
    raise InvalidWorkload("`x` is wrong: {}.", "columns")


def secrets() -> dict[str, str]:
    return dict(os.environ)


def test_the_imports_of_the_child_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds on a slow machine, where a good file was called damaged."""
    (tmp_path / "slow_import.py").write_text(
        "import time\nwhile time.process_time() < 3: pass\ndef answer():\n    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert sandbox.run(importlib.import_module("slow_import").answer, about="x.json", cpu_s=1) == 7


@pytest.mark.parametrize("function", [grow, spin, end])
def test_the_child_has_limits(function: Callable[[], Any]) -> None:
    with pytest.raises(TooDemanding, match=r"x\.json cannot be read within 3 GiB of memory and 1 s"):
        sandbox.run(function, about="x.json", cpu_s=1)


def test_a_machine_that_is_too_busy_is_not_called_a_damaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that computes little and is late is ended by the clock, not by its limit of processor time."""
    monkeypatch.setattr(sandbox, "WALL_S", 0)
    with pytest.raises(TooDemanding, match=r"x\.json was not read within 1 s: this machine is busy, .* Try again"):
        sandbox.run(time.sleep, 60, about="x.json", cpu_s=1)


def test_the_child_answers_errors_as_they_are_and_sees_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with pytest.raises(InvalidWorkload) as refused:
        sandbox.run(raise_refusal, about="x")
    assert refused.value.named == ("columns",) and str(refused.value) == "`x` is wrong: columns."
    assert "secret" not in str(sandbox.run(secrets, about="x"))
