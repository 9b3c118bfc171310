"""Each bad input once gave a traceback, and is now one clear sentence with exit 2."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend.domain.errors import RequestError
from backend.service.evaluations import tasks
from tests.helpers.task_files import TASK
from tests.integration.cli.calling import Answer, whetstone
from tests.tiny import edit_json, tiny_llama

COMMANDS = (
    ["catalog", "list"],
    ["catalog", "show", "starter"],
    ["models", "list"],
    ["models", "forget", "x"],
    ["jobs", "list"],
    ["jobs", "show", "j-1"],
    ["artifacts", "list"],
    ["artifacts", "verify", "a-1"],
    ["presets", "list"],
    ["presets", "export"],
    ["prices", "list"],
    ["engines", "list"],
    ["recipe", "check", "awq"],
    ["recipe", "estimate", "awq"],
    ["doctor"],
    ["optimize", "starter", "--recipe", "awq", "--dry-run"],
    ["train", "starter"],
    ["evaluate", "starter"],
    ["report", "e-1"],
    ["portfolio", "e-1"],
    ["bench", "imported"],
    ["bench", "http://127.0.0.1:9"],
    ["up", "--port", "1"],
    ["gateway", "--port", "0"],
    ["gateway", "keys", "list"],
    ["demo"],
)

UNWRITABLE = ("/proc/sys", "/dev/null")
"""A folder where nobody may write, and no folder."""


def called(command: list[str], home: str) -> Answer:
    return whetstone(Path(home), *command)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A copy by links, whose config.json and tokenizer.json may be changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny.iterdir():
        if file.suffix == ".safetensors":
            os.link(file, folder / file.name)
        else:
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
@pytest.mark.parametrize("port", ["99999", "0", "-1"])
def test_a_number_that_is_not_a_port(tmp_path: Path, option: str, port: str) -> None:
    answer = whetstone(tmp_path, "up", f"{option}={port}", "--no-browser")
    assert answer.returncode == 2 and "Traceback" not in answer.stderr
    assert f"{port} is not a port: give a number from 1 to 65535." in answer.stderr


@pytest.mark.parametrize(
    ("command", "home"),
    [*zip(COMMANDS, itertools.cycle(UNWRITABLE), strict=False)],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_home_that_cannot_be_written(command: list[str], home: str) -> None:
    """Every command once, on the two kinds of home by turns: all open their home in one place."""
    calls = called(command, home)
    assert calls.returncode == 2 and f"WHETSTONE_HOME, {home}, cannot be used (" in calls.stderr


@pytest.mark.parametrize(
    "url", ["nonsense", "postgresql://u:p@h:port/x", "mysql+nothing://x", "sqlite3:/x", "://", "postgresql+x"]
)
def test_a_database_that_is_no_address(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    calls = called(["jobs", "list"], str(tmp_path))
    assert (
        calls.returncode == 2
        and "DATABASE_URL is no address of a database" in calls.stderr
        and ":p@" not in calls.stderr
    )


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a?b=c", "a b", "ä%s", "q?mode=ro#x"])
def test_a_home_of_any_name_holds_its_database(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    assert called(["jobs", "list"], str(home)).returncode == 0
    assert (home / "whetstone.db").stat().st_size > 0 and [path.name for path in tmp_path.iterdir()] == [name]
    assert home.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in home.glob("whetstone.db*")} == {0o600}


def test_a_home_that_others_could_read_is_closed_and_another_folder_is_not(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
    (other / "letters.txt").write_text("mine")
    for folder in (home, other):
        assert called(["jobs", "list"], str(folder)).returncode == 0
    assert home.stat().st_mode & 0o777 == 0o700 and (other / "whetstone.db").stat().st_mode & 0o777 == 0o600


class Config(NamedTuple):
    changes: dict[str, Any]
    says: str


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        Config({"max_position_embeddings": 2**63}, "`max_position_embeddings`: it must be at most 2,147,483,647"),
        Config({"max_position_embeddings": 10**400}, "`max_position_embeddings`: it must be at most"),
        Config({"num_hidden_layers": 2**63}, "`num_hidden_layers`: it must be at most 10,000"),
        Config({"num_attention_heads": 2**40}, "`num_attention_heads`: it must be at most 10,000"),
        Config({"num_key_value_heads": 2**40}, "`num_key_value_heads`: it must be at most 10,000"),
        Config({"head_dim": 2**63}, "`head_dim`: it must be at most"),
        Config({"intermediate_size": 2**63}, "`intermediate_size`: it must be at most"),
        Config({"vocab_size": 2**63}, "`vocab_size`: it must be at most"),
        Config({"sliding_window": 2**63}, "`sliding_window`: it must be at most"),
        Config({"num_local_experts": 2**63}, "it must be at most"),
        Config({"architectures": None}, 'add the line `"architectures": ["LlamaForCausalLM"],` to it'),
        Config({"architectures": None, "model_type": "unheard"}, "names no architecture"),
    ],
)
def test_a_config_out_of_bounds(model: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    edit_json(model / "config.json", **changes)
    for command in (["models", "import", str(model)], ["recipe", "check", "awq", "--model", str(model)]):
        calls = called(command, str(tmp_path / "home"))
        assert calls.returncode == 2 and says in calls.stderr


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("w.csv", b"prompt,max_tokens\na,inf\n", "row 1: its longest answer is not a whole number above 0"),
        ("w.csv", b"prompt,max_tokens\na,1e300\n", "row 1: its longest answer is not a whole number above 0"),
        ("w.csv", b",,,,\n,,,,\n", "None of the columns"),
        ("w.csv", b"prompt,timestamp\na,inf\n", "row 1: a time that is neither a number nor a moment"),
        (
            "w.jsonl",
            b'{"prompt": "a", "max_tokens": ' + b"9" * 400 + b"}",
            "line 1: its longest answer is not a whole number above 0",
        ),
        ("w.jsonl", b'{"question": "a", "max_tokens": ' + b"9" * 400 + b"}", 'line 1: there is no text in "prompt"'),
        ("w.parquet", b"PAR1", "is not a Parquet file"),
    ],
)
@pytest.mark.process
def test_a_workload_that_is_none(tmp_path: Path, file: str, content: bytes, says: str) -> None:
    (tmp_path / file).write_bytes(content)
    calls = called(["bench", "http://127.0.0.1:9", "--workload", str(tmp_path / file)], str(tmp_path / "home"))
    assert calls.returncode == 2 and says in calls.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["jobs", "list", "--limit", str(2**63)], "--limit"),
        (["jobs", "list", "--limit", "-1"], "--limit"),
        (["recipe", "estimate", "awq", "--input-tokens", "1" + "0" * 400], "--input-tokens"),
        (["catalog", "list", "--min-size", "inf"], "billion parameters"),
        (["catalog", "list", "--max-size", "1e308"], "billion parameters"),
        (["recipe", "estimate", "awq", "--price-per-hour", "inf"], "give a finite one"),
        (["recipe", "estimate", "awq", "--price-per-hour", "nan"], "--price-per-hour"),
        (["report", "e-1", "--ratio", "inf"], "give a finite one"),
        (["gateway", "--max-kl", "0.03"], "give --portfolio EVALUATION with them"),
        (["artifacts", "gc", "--grace", "inf"], "less than or equal to 876000"),
        (["artifacts", "gc", "--unused-for", "1e10"], "less than or equal to 36500"),
        (["artifacts", "gc", "--grace", "1e12"], "less than or equal to 876000"),
        (["recipe", "check", "x" * 2000], "No file has a name as long as"),
        (["recipe", "estimate", "awq", "--output-tokens", str(2**63)], "--output-tokens"),
        (["recipe", "estimate", "awq", "--concurrency", "9" * 30], "--concurrency"),
        (["bench", "http://[::1"], "is not an address"),
        (["bench", "http://h:99999"], "is not an address"),
        (["evaluate", "http://[::1"], "is not an address"),
        (["models", "import", b"\xff\xfe".decode("utf-8", "surrogateescape")], "is not UTF-8 text"),
        (["recipe", "check", "awq", "--model", b"/tmp/\xff".decode("utf-8", "surrogateescape")], "is not UTF-8 text"),
    ],
)
def test_an_argument_that_means_nothing(tmp_path: Path, command: list[str], says: str) -> None:
    calls = called(command, str(tmp_path / "home"))
    assert calls.returncode == 2 and says in calls.stderr


@pytest.mark.parametrize("where", ["/dev/zero", "https://example.org/x.txt", "/none/such.txt", "/dev/null", "/"])
def test_a_calibration_that_is_no_file(tmp_path: Path, where: str) -> None:
    (tmp_path / "r.yaml").write_text(
        json.dumps({"name": "x", "steps": [{"quantize": {"method": "gptq", "calibration": where}}]})
    )
    for verb in ("check", "estimate"):
        calls = called(["recipe", verb, str(tmp_path / "r.yaml")], str(tmp_path / "home"))
        assert calls.returncode == 2 and f"There is no calibration file `{where}`" in calls.stderr


@pytest.mark.parametrize("name", ["--x", "-", " a", "a`b", "a\nb", "`![x](https://example.org/x.png)"])
def test_a_recipe_named_like_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "r.yaml").write_text(json.dumps({"name": name, "steps": []}))
    calls = called(["recipe", "check", str(tmp_path / "r.yaml")], str(tmp_path / "home"))
    assert (
        calls.returncode == 2 and "`name` of the recipe is wrong: it must be one line without backticks" in calls.stderr
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("output_type: loglikelihood", "output_type: [loglikelihood]", "`output_type` is"),
        ("test_split: test", "test_split: [test]", "`test_split` is"),
        ("task: sums", "task: 2026-99-99", "not valid YAML"),
        ("task: sums", "task: " + "[" * 5000, "not valid YAML"),
        ("task: sums", "task: sums\nmetadata: {day: 2026-01-01}", "neither text nor a finite number"),
    ],
)
def test_a_task_that_is_none(tmp_path: Path, old: str, new: str, says: str) -> None:
    (tmp_path / "sums.jsonl").write_text('{"q": "1 + 1 =", "a": " 2"}\n')
    (tmp_path / "t.yaml").write_text(TASK.replace(old, new))
    calls = called(
        ["evaluate", "starter", "--tasks", str(tmp_path / "t.yaml"), "--fail-if", "x"], str(tmp_path / "home")
    )
    assert calls.returncode == 2
    with pytest.raises(RequestError, match=says.replace("`", ".")):
        tasks.find(str(tmp_path / "t.yaml"))


@pytest.mark.parametrize(
    "change", [lambda d: d.update(added_tokens={"a": 1}), lambda d: d.update(added_tokens=[{"content": []}])]
)
def test_a_tokenizer_of_another_shape(model: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((model / "tokenizer.json").read_text())
    change(document)
    (model / "tokenizer.json").write_text(json.dumps(document))
    calls = called(["recipe", "check", "awq", "--model", str(model)], str(tmp_path / "home"))
    assert calls.returncode == 2 and "tokenizer.json is damaged" in calls.stderr
