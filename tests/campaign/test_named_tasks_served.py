"""Tasks by name ask a model what lm-eval's own tasks ask it, and are scored on what vLLM serves with their floor."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest

from backend.catalog.bundled import named_tasks as table
from backend.domain.errors import EngineMissing
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import EvaluateSpec
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recipe import Serving
from backend.evaluate.tasks import tasks as scoring
from backend.hardware import engine_status
from backend.hardware.engine_status import engine_python
from backend.service import Workspace
from backend.service.evaluations import evaluations, tasks
from backend.service.tasks import named_tasks
from backend.serving.servers import make_server
from backend.serving.vllm import VllmServer
from backend.settings import CHECKOUT, load
from backend.worker.measuring.server_pool import Endpoint
from backend.worker.measuring.tasks import TaskScoring
from tests import data_sets, gguf_files

pytestmark = pytest.mark.campaign

OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"), "1")


@pytest.fixture(scope="module")
def quality_python() -> Path:
    """The quality environment's interpreter; where it is missing the test fails with the sentence that says how to
    install it."""
    return engine_python(load(), "quality")


def copies(home: Workspace, root: Path, names: list[str]) -> list[str]:
    """The copies, as a job has them, of tasks whose data is read from `root`."""
    for data_set in data_sets.SCHEMAS:
        data_sets.store(root, data_set)
    found_tasks = []
    for name in names:
        named_tasks.get(home, name, str(root / "datasets" / table.load()[name].data_set))
        found_tasks += tasks.find(name, home.settings.home)
    return [*tasks.keep_copies(home, found_tasks)]


@pytest.mark.timeout(600)
def test_every_request_is_the_one_of_lm_evals_own_task(quality_python: Path, home: Workspace, tmp_path: Path) -> None:
    folders = copies(home, tmp_path, named_tasks.names())
    arguments = [str(tmp_path), json.dumps(folders), json.dumps(data_sets.SUBJECTS)]
    done = subprocess.run(
        [str(quality_python), "-m", "tests.campaign.own_tasks", *arguments],
        env={**os.environ, **OFFLINE, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(CHECKOUT)},
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert set(answer["own"]) == set(named_tasks.names())
    for name, own in answer["own"].items():
        ours = answer["ours"][name]
        assert len(own["requests"]) >= data_sets.COUNT
        assert (ours["metrics"], ours["filters"]) == (own["metrics"], own["filters"]), name
        if name == "mmlu":  # the same requests, with the subjects in turn
            assert sorted(map(json.dumps, ours["requests"])) == sorted(map(json.dumps, own["requests"]))
        else:
            assert ours["requests"] == own["requests"], name
    assert answer["ours"]["gsm8k"]["requests"][0][1].count("Question:") == 6, "five examples and the question"


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_choices_and_answers_in_text_are_scored_with_floor_and_licence(
    vllm_server: VllmServer, starter_target: Path, quality_python: Path, home: Workspace, tmp_path: Path
) -> None:
    folders = copies(home, tmp_path, ["arc_easy", "gsm8k"])
    server = scoring.TaskServer(vllm_server.url, vllm_server.served_name, starter_target, vllm_server.key)
    scores = [each.score for each in scoring.score_tasks(quality_python, folders, 8, server, tmp_path / "cache")]
    assert {(score.task, score.metric) for score in scores} == {
        ("arc_easy", "acc"),
        ("arc_easy", "acc_norm"),
        ("gsm8k", "exact_match,strict-match"),
        ("gsm8k", "exact_match,flexible-extract"),
    }
    chances = [1 / len(row["choices"]["text"]) for row in data_sets.rows("allenai/ai2_arc", "test")[:8]]
    for score in scores:
        expected = sum(chances) / 8 if score.task == "arc_easy" else 0
        assert score.floor == pytest.approx(expected)
        assert (score.samples, score.items) == (8, data_sets.COUNT) and 0 <= score.value <= 1
        assert score.licence == table.load()[score.task].licence


@pytest.mark.parametrize("engine", ["llama.cpp", "openvino"])
@pytest.mark.timeout(900)
def test_answers_in_text_are_scored_on_servers_of_a_gguf_file(
    quality_python: Path,
    home: Workspace,
    starter_target: Path,
    tmp_path: Path,
    engine: Literal["llama.cpp", "openvino"],
) -> None:
    """The server's own answers to the prompts that lm-eval makes, in tokens of the model's tokenizer."""
    file = tmp_path / "starter.gguf"
    gguf_files.write(file, starter_target, extra={"general.file_type": 3})
    variant = Variant(
        name="starter",
        source="starter",
        kind="model",
        model_path=str(starter_target),
        gguf=str(file),
        bytes_on_disk=file.stat().st_size,
        serving=Serving(engine=engine, threads=1, max_num_seqs=2),
    )
    spec = EvaluateSpec(variants=(variant,), options=evaluations.read_options())
    try:
        program = engine_status.server_program(load(), variant)
    except EngineMissing as error:  # `make test` installs neither
        pytest.skip(str(error))
    (folder,) = copies(home, tmp_path, ["gsm8k"])
    with make_server(variant, program=program, log=tmp_path / "server.log", cache_root=tmp_path) as server:
        endpoint = Endpoint(server.url, server.served_name, server)
        target = TaskScoring(spec, load(), tmp_path, NoProgress())._server(variant, endpoint)
        scores = [each.score for each in scoring.score_tasks(quality_python, [folder], 4, target, tmp_path / "cache")]
        counted = server.metrics()["generation_tokens"]
    assert {score.metric for score in scores} == {"exact_match,strict-match", "exact_match,flexible-extract"}
    assert all((score.samples, score.floor, score.cut) == (4, 0, 0) for score in scores) and counted > 0
