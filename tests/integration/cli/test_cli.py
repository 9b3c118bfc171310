"""The command line as a user meets it: exit codes, one sentence on standard error, one JSON document on standard
output."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from backend.domain.jobs.jobs import JobState
from backend.service.jobs import jobs
from backend.settings import ASSETS
from tests.helpers.recipe_files import recipe
from tests.homes import open_home
from tests.integration.cli.calling import one_sentence, process, whetstone
from tests.tiny import tiny_llama

STARTER = ASSETS / "starter" / "target"


def refused(home: Path, *arguments: str) -> str:
    """Run what must be refused before it starts; its one sentence."""
    sentence = one_sentence(whetstone(home, *arguments))
    assert json.loads(whetstone(home, "jobs", "list", "--json").stdout) == []
    return sentence


NGRAM = "name: r\nsteps:\n  - speculate: {method: ngram}\n"


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    requests = ("optimize", "nosuch", "--recipe", "w8a8")
    refusal = refused(tmp_path, *requests)
    assert "no model `nosuch`" in refusal and one_sentence(process(tmp_path, *requests)) == refusal


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "config.json" in refused(tmp_path / "home", "optimize", str(tmp_path / "empty"), "--recipe", "w8a8")


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(STARTER, model, ignore=shutil.ignore_patterns("*.safetensors"))
    (model / "pytorch_model.bin").write_bytes(b"\x80\x02")
    refusal = refused(tmp_path / "home", "optimize", str(model), "--recipe", "w8a8")
    assert "pytorch_model.bin" in refusal and "safetensors" in refusal


def test_a_corrupt_safetensors_header_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(STARTER, model)
    with (model / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * 16)
    assert "model.safetensors" in refused(tmp_path / "home", "optimize", str(model), "--recipe", "w8a8")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name: r\nsteps:\n  - quantize: {method: w8a8, colour: red}\n", "colour"),
        ("name: r\nsteps:\n  - quantize: {method: w8a8}\n  - quantize: {method: awq}\n", "2 times"),
        ("name: r\nsteps:\n  - quantize: {method: awq, group_size: 96}\n", "Group size 96"),
        ("name: r\nsteps:\n\t- quantize: {method: w8a8}\n", "YAML"),
        ("name: r\nsteps:\n  - speculate: {method: suffix}\n", "needs arctic-inference"),
        ("name: r\nsteps:\n  - quantize: {method: awq, act_order: true}\n", "takes no `act_order`"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_reason(tmp_path: Path, text: str, word: str) -> None:
    assert word in refused(tmp_path / "home", "optimize", "starter", "--recipe", recipe(tmp_path, text))


def test_a_draft_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other")
    text = f"name: r\nsteps:\n  - speculate: {{method: draft, draft: {other}}}\n"
    assert "another vocabulary" in refused(tmp_path / "home", "optimize", "starter", "--recipe", recipe(tmp_path, text))


def test_a_workload_with_a_broken_line_is_refused_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "load.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    refusal = refused(tmp_path / "home", "evaluate", "starter", "--workload", str(tmp_path / "load.jsonl"))
    assert "line 2: it is not JSON" in refusal


@pytest.mark.parametrize("wrong", ["0", "a,b", "1,1", "99999"])
def test_a_wrong_concurrency_is_refused(tmp_path: Path, wrong: str) -> None:
    assert "--concurrency" in refused(tmp_path, "evaluate", "starter", "--concurrency", wrong)


def test_bench_of_an_unreachable_port_says_so_and_exits_1(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound but not listening: nothing answers there
        done = process(tmp_path, "bench", f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "--model", "m")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("whetstone: ") == 1 and "Traceback" not in done.stderr


def test_a_port_in_use_is_refused_by_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = process(tmp_path, "up", "--port", str(listener.getsockname()[1]), "--no-browser")
    assert done.returncode == 2 and "--port" in done.stderr


def test_the_plan_of_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    done = whetstone(tmp_path, "optimize", "starter", "--recipe", "w8a8-draft", "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert [step["technique"] for step in document["plan"]["steps"]] == ["quantize", "speculate"]
    assert document["need"]["disk_bytes"] > 0 and not (tmp_path / "artifacts").exists()


def test_what_comes_next_names_what_was_optimized_and_can_be_pasted(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "my model")
    done = process(tmp_path / "home", "optimize", str(model), "--recipe", recipe(tmp_path, NGRAM), "--wait")
    assert done.returncode == 0, done.stderr
    ready, last = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert shlex.split(last) == ["Next:", "whetstone", "evaluate", str(model), ready.split()[0]]


def test_unservable_variants_are_not_offered_and_ruined_ones_are_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ruined artifact is loud in the terminal, in the job's events and in its result."""
    monkeypatch.setenv("WHETSTONE_QUALITY_FLOOR", "1e-9")
    text = "name: for a GPU\nsteps:\n  - quantize: {method: int8, samples: 1, length: 8}\n"
    model = tiny_llama(tmp_path / "model")
    done = process(tmp_path / "home", "optimize", str(model), "--recipe", recipe(tmp_path, text), "--wait")
    assert done.returncode == 0, done.stderr
    assert "cannot be served here: vLLM on a processor" in done.stdout.splitlines()[-1] and "Next:" not in done.stdout
    (warning,) = [line for line in done.stdout.splitlines() if line.startswith("  WARNING: The result is ruined: ")]
    opened = open_home(tmp_path / "home")
    (job,) = jobs.listing(opened)
    ruined = job.result["quality"]["below_floor"]
    assert job.state is JobState.SUCCEEDED and ruined == warning.removeprefix("  WARNING: ")
    assert ruined in [event.message for _, event in jobs.events(opened, job.id) if event.kind == "warning"]


def test_recipe_check_answers_with_reasons_and_a_suggestion(tmp_path: Path) -> None:
    text = "name: r\nsteps:\n  - quantize: {method: llm-int8}\n  - compile: {}\n"
    done = whetstone(tmp_path / "home", "recipe", "check", recipe(tmp_path, text), "--model", "starter", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 2 and document["valid"] is False and document["reasons"][0]["source"]
    assert document["suggestion"]["steps"] == [{"quantize": {"method": "smoothquant"}}, {"compile": {}}]


def test_what_has_no_room_here_is_refused_before_the_start(tmp_path: Path) -> None:
    """Memory is looked at before disk. A card is read from headers alone, so a file with a huge hole in it is a huge
    model."""
    model = tmp_path / "model"
    shutil.copytree(STARTER, model, ignore=shutil.ignore_patterns("*.safetensors"))
    size = 1 << 43
    header = json.dumps({"a": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    with (model / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    refusal = refused(tmp_path / "home", "optimize", str(model), "--recipe", recipe(tmp_path, NGRAM))
    assert "does not fit on this machine" in refusal and "GB of weights" in refusal


def test_doctor_and_engines_answer_as_json(tmp_path: Path) -> None:
    assert {item["subject"] for item in json.loads(whetstone(tmp_path, "doctor", "--json").stdout)} >= {
        "Disk",
        "Database",
    }
    engines = {item["name"]: item for item in json.loads(whetstone(tmp_path, "engines", "list", "--json").stdout)}
    assert engines["serve"]["installed"] is True and engines["neuron"]["reason"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "at least one variant"),
        (("starter", "--blocks", 3), "--continue EVALUATION with --blocks"),
        (("--continue", "e-1", "--blocks", 2, "--max-tokens", 9), "leave out all options but --blocks"),
        (("starter", "--continue", "e-1", "--blocks", 2), "leave out all options but --blocks"),
        (("--continue", "e-1", "--blocks", 2), "no evaluation e-1"),
    ],
)
def test_more_blocks_are_asked_of_an_evaluation_and_of_nothing_else(
    tmp_path: Path, words: tuple[object, ...], says: str
) -> None:
    assert says in refused(tmp_path / "home", "evaluate", *words)
