"""A training as a whole on a tiny target: what it learns, that a stopped one goes on to the same bytes, and what it
refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import RequestError
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.draft_training import DraftKind, Training
from backend.engines.drafts.train import TrainRequest, TrainResult, rate, train
from tests.tiny import tiny_llama

PROMPTS = tuple(f"def number_{number}(first):\n    return first + {number}" for number in range(12))
OPTIONS = Training(
    hidden=64,
    layers=1,
    steps=12,
    answers=20,
    answer_tokens=12,
    batch=4,
    tokens=2,
    minutes=1.0,
    learning_rate=1e-2,
    loss="kl",
)


class RecordedProgress(NoProgress):
    """Keeps what is told, and stops the run as a kill would, at the time of its `stop`-th word of that kind."""

    def __init__(self, kind: str = "", stop: int = 0) -> None:
        self.kind, self.stop, self.seen = kind, stop, 0
        self.points: list[dict[str, Any]] = []
        self.phases: list[str] = []

    def phase(
        self, name: str, message: str, *, total: float | None = None, unit: str | None = None, weight: float = 1.0
    ) -> None:
        self.phases.append(name)

    def advance(self, done: float, **data: Any) -> None:
        if self.phases[-1] == self.kind:
            self.seen += 1
            if self.seen == self.stop:
                raise KeyboardInterrupt

    def point(self, **data: Any) -> None:
        self.points.append(data)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target") / "model", layers=3)


def trained(model: Path, folder: Path, options: Training = OPTIONS, progress: NoProgress | None = None) -> TrainResult:
    out = folder / "draft"
    out.mkdir(parents=True, exist_ok=True)
    request = TrainRequest(target_dir=model, out_dir=out, options=options, prompts=PROMPTS, work_dir=folder / "work")
    return train(request, progress or NoProgress())


def test_a_draft_is_trained_on_answers_and_judged_on_others(model: Path, tmp_path: Path) -> None:
    reply = RecordedProgress()
    training = trained(model, tmp_path, OPTIONS.model_copy(update={"steps": 30}), reply)
    assert reply.phases == ["answers", "train", "save"]
    assert [point["step"] for point in reply.points] == [check.step for check in training.curve]
    assert [each.temperature for each in training.acceptance] == [0.0, 1.0]
    assert all(len(each.by_position) == OPTIONS.tokens for each in training.acceptance)
    assert training.curve[-1].validation < training.curve[0].validation
    assert training.data["aside"] == 3
    assert 0 < training.data["greedy"] <= training.data["answers"]
    assert (tmp_path / "draft" / "model.safetensors").is_file()
    best = max(training.curve, key=lambda check: check.length)
    assert training.best_step == best.step


@pytest.mark.parametrize(
    ("draft", "kind", "stop"),
    [
        ("small", "answers", 2),
        ("small", "train", 1),
        ("small", "train", 7),
        ("eagle3", "train", 7),
        ("medusa", "train", 7),
    ],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    model: Path, tmp_path: Path, draft: DraftKind, kind: str, stop: int
) -> None:
    options = OPTIONS.model_copy(update={"kind": draft})
    whole = trained(model, tmp_path / "whole", options)
    with pytest.raises(KeyboardInterrupt):
        trained(model, tmp_path / "stopped", options, RecordedProgress(kind, stop))
    training = trained(model, tmp_path / "stopped", options)
    files = [(tmp_path / name / "draft" / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]
    assert training.acceptance == whole.acceptance


def test_answers_are_not_asked_for_again(model: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(model, tmp_path, progress=RecordedProgress("train", 1))
    rounds = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work" / "answers").iterdir()}
    trained(model, tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work" / "answers").iterdir()} == rounds


def test_a_budget_too_small_for_a_checkpoint_is_refused_with_one_that_suffices(model: Path, tmp_path: Path) -> None:
    short = OPTIONS.model_copy(update={"steps": None, "minutes": 0.001, "answers": 4})
    with pytest.raises(RequestError, match=r"0\.001 minutes end before a first checkpoint .*give 1 minutes or more\."):
        trained(model, tmp_path, short)


def test_a_draft_can_learn_from_what_it_says_itself(model: Path, tmp_path: Path) -> None:
    training = trained(model, tmp_path, OPTIONS.model_copy(update={"on_policy": 0.5, "steps": 4}))
    assert training.steps == 4


def test_the_rate_rises_and_falls() -> None:
    rates = [rate(step, 200) for step in range(200)]
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] < 0.06
