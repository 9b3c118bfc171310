"""Recovery after pruning: every zero kept, the best state kept, the same bytes again, and what it refuses."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ImpossibleStack, InvalidWorkload, WorkError
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recovery import FEWEST_TIMED, SPARE_SEQUENCES, Recover
from backend.engines.native.recovery import recovery as recovery_data
from backend.engines.native.recovery import sequences
from backend.engines.native.recovery.recovery import rate, rate_at
from backend.layered import matrix_products
from tests import families
from tests.helpers.recovery_cases import FAST, Case, same_but_for_the_kept_weights
from tests.tiny import TEXT, tiny_llama


class Stopped(Exception):
    """As a kill would."""


class RecordedProgress(NoProgress):
    """Keeps what it is told; ends the run once `stop` steps are done."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.notes: list[str] = []
        self.points: list[dict[str, Any]] = []

    def advance(self, done: float, **_: object) -> None:
        if done == self.stop:
            raise Stopped

    def note(self, message: str, **_: object) -> None:
        self.notes.append(message)

    def point(self, **data: Any) -> None:
        self.points.append(data)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case.prune(tiny_llama(tmp_path_factory.mktemp("model") / "llama", hidden=64, intermediate=128))


@pytest.mark.parametrize("teacher", [True, False])
def test_it_lowers_the_loss_and_changes_only_weights_that_were_kept(case: Case, tmp_path: Path, teacher: bool) -> None:
    reply = RecordedProgress()
    result = case.recover(tmp_path / "out", FAST.model_copy(update={"teacher": teacher}), reply)
    assert result.improved
    assert result.loss_after < result.loss_before
    assert [point["step"] for point in reply.points] == list(range(7))
    assert [point.model_dump() for point in result.curve] == reply.points
    same_but_for_the_kept_weights(case, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in case.pruned.iterdir()}


@pytest.mark.parametrize("kind", ["gpt2", "falcon-7b"])
def test_matrices_of_other_modules_than_linears_keep_their_zeros_too(tmp_path: Path, kind: str) -> None:
    case = Case.prune(families.tiny(tmp_path / kind, kind, layers=1))
    assert case.recover(tmp_path / "out", FAST.model_copy(update={"steps": 2})).improved
    same_but_for_the_kept_weights(case, tmp_path / "out")


def test_a_stopped_run_goes_on_to_the_same_bytes(case: Case, tmp_path: Path) -> None:
    """Stopped in a step after the last state was kept, which is then made again: with 40 steps one is kept every
    two."""
    changed = FAST.model_copy(update={"steps": 40})
    whole = case.recover(tmp_path / "whole", changed)
    with pytest.raises(Stopped):
        case.recover(tmp_path / "out", changed, RecordedProgress(stop=5))
    again = RecordedProgress()
    resumed = case.recover(tmp_path / "out", changed, again)
    assert again.notes[0] == "4 of 40 steps were done before: going on with the next."
    assert [point["step"] for point in again.points] == [point.step for point in whole.curve]
    assert resumed == whole
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_it_asks_for_more_steps_where_the_loss_still_fell_and_for_nothing_else(case: Case, tmp_path: Path) -> None:
    reply = RecordedProgress()
    case.recover(tmp_path / "out", FAST, reply)
    assert reply.notes[-1].endswith("The validation loss was lowest at the end: more steps may win back more.")
    case.recover(tmp_path / "none", FAST.model_copy(update={"learning_rate": 1.0}), reply)
    assert reply.notes[-1].endswith("which is kept.")


def test_another_request_begins_anew(case: Case, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        case.recover(tmp_path / "out", progress=RecordedProgress(stop=3), seed=1)
    again = RecordedProgress()
    case.recover(tmp_path / "out", progress=again)
    case.recover(tmp_path / "whole")
    assert len(again.notes) == 1
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_it_stops_when_the_loss_no_longer_falls_and_asks_for_more_text(case: Case, tmp_path: Path) -> None:
    """With too high a rate the first steps help and later ones do harm."""
    request, reply = Recover(steps=400, learning_rate=0.02, rank=4, patience=2), RecordedProgress()
    result = case.recover(tmp_path / "out", request, reply)
    count = result.data["training"]["samples"]
    times = result.steps * request.batch / count
    assert times > 1.5
    sentence = f"Each of the {count} sequences was read {times:.1f} times: more text may win back more."
    assert reply.notes[-1].endswith(sentence)
    losses = [point.validation for point in result.curve]
    assert result.stopped == "patience"
    assert 0 < result.best_step < result.steps < request.steps
    assert result.loss_after == min(losses)
    assert result.best_step == result.curve[losses.index(min(losses))].step
    measured = replace(case, pruned=tmp_path / "out").recover(tmp_path / "again", Recover(steps=1))
    assert measured.loss_before == pytest.approx(result.loss_after, rel=0.05)  # in 16 bit as written
    assert measured.loss_before < result.curve[-1].validation


def test_where_nothing_was_better_the_pruned_weights_are_kept(case: Case, tmp_path: Path) -> None:
    reply = RecordedProgress()
    result = case.recover(tmp_path / "out", Recover(steps=40, learning_rate=1.0, patience=1), reply)
    assert (result.improved, result.best_step, result.loss_after) == (False, 0, result.loss_before)
    assert digest(tmp_path / "out") == digest(case.pruned)
    assert "nothing was better than the pruned model, which is kept." in reply.notes[-1]


class Clock:
    """Advances by so many seconds each time that it is read."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0

    def monotonic(self) -> float:
        self.now += self.seconds
        return self.now


def test_minutes_end_the_training_and_the_best_is_kept(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_data, "time", Clock(0.5))
    result = case.recover(tmp_path / "out", Recover(minutes=1, learning_rate=0.005, rank=4, patience=100))
    assert result.stopped == "minutes"
    assert 5 < result.steps < 60  # some readings of the clock a step
    assert 5 <= len(result.curve) <= 12 and result.curve[-1].step == result.steps
    assert result.improved and result.loss_after < result.loss_before
    by_steps = case.recover(tmp_path / "steps", FAST.model_copy(update={"minutes": 1000}))
    assert (by_steps.stopped, by_steps.steps) == ("steps", FAST.steps)


def test_slow_validations_are_fewer_where_minutes_end_the_training(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock is half a second later, so the first validation takes as long: 2 of 60 s are four."""
    monkeypatch.setattr(recovery_data, "time", Clock(0.5))
    monkeypatch.setattr(recovery_data, "VALIDATING", 2 / 60)
    options = Recover(minutes=1, learning_rate=0.005, rank=4, patience=100)
    assert len(case.recover(tmp_path / "four", options).curve) == 1 + 4
    monkeypatch.setattr(recovery_data, "VALIDATING", 1 / 60)
    assert len(case.recover(tmp_path / "few", options).curve) == 1 + FEWEST_TIMED


def test_minutes_too_few_for_a_first_result_end_it_at_once(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_data, "time", Clock(15.0))
    with pytest.raises(WorkError, match=r"first validation of the recovery ended after .* give `recover.minutes: \d+`"):
        case.recover(tmp_path / "out", Recover(minutes=1))
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_steps_are_in_16_bits_where_the_hardware_has_them_and_validation_never(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {}
    for able in (True, False):
        monkeypatch.setattr(matrix_products, "has_bfloat16", lambda kind, able=able: able)
        results[able] = case.recover(tmp_path / str(able))
    half, full = results[True], results[False]
    assert half.loss_before == full.loss_before and half.curve[1].training != full.curve[1].training
    gains = [result.loss_before - result.loss_after for result in (half, full)]
    assert min(gains) > 0 and gains[0] == pytest.approx(gains[1], rel=0.2)
    assert digest(tmp_path / "True") != digest(tmp_path / "False")


def test_the_rate_falls_with_the_time() -> None:
    rates = [rate_at(number / 100) for number in range(101)]
    assert 0 < rates[0] < rates[4] <= max(rates) == pytest.approx(1.0)
    assert rates[5:] == sorted(rates[5:], reverse=True) and rates[100] == 0
    assert rate_at(1.5) == 0


def test_it_learns_from_what_the_original_writes_and_goes_on_with_it(case: Case, tmp_path: Path) -> None:
    import torch

    answering = FAST.model_copy(update={"answers": True, "steps": 40})
    reply = RecordedProgress()
    whole = case.recover(tmp_path / "whole", answering, reply)
    assert any(note.startswith("The original writes the ") for note in reply.notes)
    written = torch.load(tmp_path / "whole-work" / "answers.pt", weights_only=True)
    assert len(written) == whole.data["training"]["samples"] and written.shape[1] == whole.data["training"]["length"]
    plain = case.recover(tmp_path / "plain", answering.model_copy(update={"answers": False}))
    assert plain.data["training"]["sha256"] != whole.data["training"]["sha256"]
    assert plain.data["validation"] == whole.data["validation"]
    with pytest.raises(Stopped):
        case.recover(tmp_path / "out", answering, RecordedProgress(stop=5))
    again = RecordedProgress()
    assert case.recover(tmp_path / "out", answering, again) == whole
    assert not any(note.startswith("The original writes") for note in again.notes)


def test_the_original_writes_for_a_share_of_the_minutes_at_most(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock is a second later, and only a twelfth of the minute is for the 16 answers."""
    monkeypatch.setattr(recovery_data, "time", Clock(1.0))
    monkeypatch.setattr(recovery_data, "ANSWERED", 1)
    monkeypatch.setattr(recovery_data, "ANSWERING", 1 / 12)
    reply = RecordedProgress()
    result = case.recover(tmp_path / "out", Recover(minutes=1, answers=True, learning_rate=0.005, rank=4), reply)
    written = result.data["training"]["samples"]
    assert 2 <= written < 16
    assert f"Its share of the minutes is over after {written} sequences: it learns from these." in reply.notes


def test_only_the_factors_have_gradients_and_at_first_they_change_nothing(case: Case) -> None:
    import torch

    from backend.engines.native.recovery.adapters import Adapters, load

    model, paths = load(case.pruned, "cpu", case.linears)
    tokens = torch.arange(32)[None]
    before = model(tokens).logits
    adapters = Adapters(model, paths.values(), 4, seed=0)
    assert torch.equal(model(tokens).logits, before)
    assert {id(each) for each in model.parameters() if each.requires_grad} == {
        id(each) for each in adapters.named().values()
    }
    assert len(adapters.named()) == 2 * 14


@pytest.mark.parametrize("kind", ["llama", "gpt2", "falcon-7b"])
def test_where_no_zero_has_to_stay_the_factors_beside_a_matrix_give_the_same(tmp_path: Path, kind: str) -> None:
    """Outputs, gradients and the merged matrix are those of the product that is added to the matrix."""
    import torch

    from backend.engines.native.recovery.adapters import Adapters, load

    case = Case.prune(families.tiny(tmp_path / kind, kind, layers=1))
    tokens, results = torch.arange(32)[None], []
    for keep_zeros in (True, False):
        model, paths = load(case.model, "cpu", case.linears)
        adapters = Adapters(model, paths.values(), 4, seed=0, keep_zeros=keep_zeros)
        with torch.no_grad():
            for number, factor in enumerate(adapters.named().values()):
                factor.add_(torch.randn(factor.shape, generator=torch.Generator().manual_seed(number)) / 10)
        logits = model(tokens).logits
        logits.square().mean().backward()
        gradients = [factor.grad for factor in adapters.named().values()]
        merged = [adapters.merged(path, torch.float32) for path in adapters.paths]
        results.append((logits, gradients, merged))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-3)


def test_without_a_rate_of_its_own_it_is_by_the_width_of_the_model_and_the_rank(case: Case, tmp_path: Path) -> None:
    rates = [case.recover(tmp_path / str(rank), Recover(steps=1, rank=rank)).learning_rate for rank in (8, 16)]
    assert rates == pytest.approx([12 / 64 / 8, 12 / 64 / 16])
    assert case.recover(tmp_path / "other", Recover(steps=1, learning_rate=1e-4)).learning_rate == 1e-4


def test_too_little_text_and_experts_are_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkload, match=f"recover with, fewer than {SPARE_SEQUENCES}: give more text"):
        case.recover(tmp_path / "out", texts=[TEXT[:400]])
    assert not (tmp_path / "out").exists()
    experts = Case.prune(families.tiny(tmp_path / "mixtral", "mixtral", layers=1))
    with pytest.raises(ImpossibleStack, match="made of experts: leave `recover` out"):
        experts.recover(tmp_path / "out")


def test_batches_are_epochs_in_random_order_and_validation_is_apart() -> None:
    import torch

    tokens = torch.arange(50)[:, None].expand(50, 8)
    split = sequences.split_data(tokens[:20], tokens[20:])
    trained, validated = (set(part[:, 0].tolist()) for part in split)
    assert trained | validated == set(range(50)) and set(range(20)) <= trained
    assert (len(split.training), len(split.validation)) == (35, 15)
    rows = [
        split.training[place, 0].item()
        for step in range(18)
        for place in sequences.sequence_numbers(35, step, 4, seed=3)
    ]
    expected = sorted(split.training[:, 0].tolist())
    assert sorted(rows[:35]) == sorted(rows[35:70]) == expected
    assert rows[:35] != rows[35:70] != expected


@pytest.mark.parametrize("steps", [1, 7, 200])
def test_the_learning_rate_rises_to_its_highest_and_falls(steps: int) -> None:
    rates = [rate(step, steps) for step in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) == 1.0
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert min(rates) > 0
