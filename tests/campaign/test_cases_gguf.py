"""GGUF files that people meet, through the real command: each is imported as it computes, or refused in one
sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import supervisors
from tests.cases import ggufs
from tests.homes import until_ended
from tests.integration.cli.calling import one_sentence, whetstone

pytestmark = [pytest.mark.campaign, pytest.mark.process]

LINEAR = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
EXPERTS = {"expert_count": 4, "expert_used_count": 2}


def one(stored: ggufs.Tensors, values: dict[str, Any]) -> Callable[[Path], Path]:
    return lambda folder: ggufs.write(folder / "toy.gguf", stored, values)


LLAMA_3 = {
    "rope_theta": 10000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CARRIED: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "plain": (one(ggufs.tensors(), ggufs.keys()), {"model_type": "llama"}),
    "linear-scaling": (
        one(ggufs.tensors(), ggufs.keys(**LINEAR)),
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}},
    ),
    "llama-3": (
        one(ggufs.tensors() | ggufs.llama3_frequencies(), ggufs.keys(context_length=16384)),
        {"rope_parameters": LLAMA_3},
    ),
    "experts": (
        one(ggufs.tensors(experts=4), ggufs.keys(**EXPERTS)),
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "second-of-three-parts": (
        lambda folder: ggufs.write_parts(folder, ggufs.tensors(), ggufs.keys(), 3)[1],
        {"model_type": "llama", "num_hidden_layers": ggufs.LAYERS},
    ),
}
"""Name -> the file, and what of config.json says that it was carried."""


def test_imports_carry_what_the_files_compute(home: Workspace, tmp_path: Path) -> None:
    """All five at once: a job's end also says that its layers were held against the file's own tensors."""
    place, submitted = home.settings.home, {}
    for name, (make, _) in CARRIED.items():
        (tmp_path / name).mkdir()
        path = make(tmp_path / name)
        parsed = json.loads(whetstone(place, "models", "inspect", path, "--json").stdout)
        done = whetstone(place, "models", "import", path, "--name", name, "--detach", "--json")
        submitted[name] = parsed, json.loads(done.stdout)["id"]
    supervisors.ensure_running(home)
    for name, (parsed, job) in submitted.items():
        ended = until_ended(home, job)
        assert ended.state is JobState.SUCCEEDED, (name, ended.error)
        model = ended.result["model"]
        assert (model["parameters"], model["experts"]) == (parsed["parameters"], parsed["experts"])
        config = json.loads((Path(model["path"]) / "config.json").read_text())
        required = CARRIED[name][1]
        assert {field: config[field] for field in required} == required


def parts_without_the_second(folder: Path) -> Path:
    parts = ggufs.write_parts(folder, ggufs.tensors(), ggufs.keys(), 3)
    parts[1].unlink()
    return parts[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nothing.gguf", "There is no file"),
        (parts_without_the_second, "toy-00002-of-00003.gguf is missing"),
        (one(ggufs.tensors(), ggufs.keys(rope__scaling__type="longrope")), "`llama.rope.scaling.type` = longrope"),
        (one(ggufs.tensors(), ggufs.keys(rope__dimension_count=8)), "`llama.rope.dimension_count` = 8"),
        (one(ggufs.tensors(), ggufs.keys(logit_scale=0.5)), "`llama.logit_scale` = 0.5"),
        (one(ggufs.tensors(), ggufs.keys(something__new=1)), "`llama.something.new` = 1"),
        (one(ggufs.tensors(bias="q"), ggufs.keys()), "blk.0.attn_q.bias"),
        (one(ggufs.tensors(), ggufs.keys() | {"general.type": "adapter"}), "an adapter (LoRA)"),
        (one({}, ggufs.keys()), "a vocabulary and no weights"),
    ],
)
def test_what_is_not_carried_is_refused_before_any_job(
    home: Workspace, tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path, place = make(tmp_path), home.settings.home
    for verb in ("inspect", "import"):
        assert message in one_sentence(whetstone(place, "models", verb, path))
    assert json.loads(whetstone(place, "jobs", "list", "--json").stdout) == []
