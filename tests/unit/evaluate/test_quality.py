"""Output quality: perplexity and KL against arithmetic by hand, on real small models; agreement of greedy answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidModel, InvalidWorkload, JobCancelled, ModelDamaged, WorkError
from backend.domain.jobs.progress import NoProgress
from backend.domain.maths.intervals import mean_ci95
from backend.evaluate.quality.model_logits import ScoringPlace
from backend.evaluate.quality.scoring import greedy_match, score, tokenize, window_tokens
from tests.tiny import TEXT, tiny_llama

SHAPE: dict[str, Any] = {"hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 64}
answers = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return tiny_llama(folder / "a", **SHAPE), tiny_llama(folder / "b", seed=1, **SHAPE)


def logits(folder: Path, ids: list[int]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def by_hand(models: tuple[Path, Path], ids: list[int]) -> tuple[float, float]:
    """KL(first || second) and the second's loss, mean over the window's positions, one at a time."""
    first, second = (logits(folder, ids)[:-1].double().softmax(-1).tolist() for folder in models)
    kl = [sum(p * math.log(p / q) for p, q in zip(a, b, strict=True)) for a, b in zip(first, second, strict=True)]
    losses = [-math.log(row[token]) for row, token in zip(second, ids[1:], strict=True)]
    return sum(kl) / len(kl), sum(losses) / len(losses)


def test_the_original_against_itself_has_a_divergence_of_exactly_zero(models: tuple[Path, Path]) -> None:
    result = score(models[0], models[0], TEXT, length=32, progress=NoProgress())
    assert result["kl_mean"] == 0
    assert result["kl_ci95"] == (0, 0)
    assert result["same_top"] == 1
    assert result["perplexity"] == result["perplexity_original"]
    assert result["scored"] == "original"


def test_divergence_and_perplexity_are_what_arithmetic_by_hand_gives(models: tuple[Path, Path]) -> None:
    length = 150  # more than one block of positions
    result = score(*models, TEXT, length=length, windows=1, progress=NoProgress())
    kl, loss = by_hand(models, tokenize(models[0], [TEXT])[0][:length])
    assert result["kl_mean"] == pytest.approx(kl, rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert result["kl_ci95"] is None
    assert (result["windows"], result["tokens"]) == (1, length)
    ids = tokenize(models[0], [TEXT])[0][:length]
    first, second = (logits(folder, ids)[:-1].argmax(-1) for folder in models)
    assert result["same_top"] == pytest.approx(float((first == second).float().mean())) and 0 < result["same_top"] < 1


def test_the_mean_is_over_windows_and_lies_in_its_interval(models: tuple[Path, Path]) -> None:
    result = score(*models, TEXT, length=16, progress=NoProgress())
    ids = tokenize(models[0], [TEXT])[0]
    windows = [ids[start : start + 16] for start in range(0, len(ids) - 15, 16)]
    kls = [by_hand(models, window)[0] for window in windows]
    assert result["windows"] == len(windows)
    assert result["kl_mean"] == pytest.approx(sum(kls) / len(kls), rel=1e-5)
    assert result["kl_ci95"] == pytest.approx(mean_ci95(kls), rel=1e-4)
    assert result["kl_ci95"][0] < result["kl_mean"] < result["kl_ci95"][1]


class Counted(NoProgress):
    """`ends` at the first step beyond so many, as a cancelled job does."""

    def __init__(self, ends: float = math.inf) -> None:
        self.ends, self.steps, self.total = ends, list[float](), 0.0

    def phase(
        self, name: str, message: str, *, total: float | None = None, unit: str | None = None, weight: float = 1.0
    ) -> None:
        assert (name, unit) == ("quality", "layers")
        self.total = total or 0.0

    def advance(self, done: float, **data: Any) -> None:
        self.steps.append(done)
        if done > self.ends:
            raise JobCancelled


def test_fewer_windows_are_spread_evenly_over_the_text(models: tuple[Path, Path]) -> None:
    tokens, all_of_it = (window_tokens(models[0], TEXT, 16, count) for count in (3, None))
    step = len(all_of_it) / 3
    assert tokens.tolist() == [all_of_it[int(number * step)].tolist() for number in range(3)]


def test_progress_counts_the_layers_of_both_models_and_their_heads(models: tuple[Path, Path]) -> None:
    progress = Counted()
    score(*models, TEXT, length=128, progress=progress)
    assert progress.total == 6
    assert progress.steps == sorted(progress.steps)
    assert {1, 2, 3, 4, 6} <= set(progress.steps)
    alone = Counted()
    score(models[0], models[0], TEXT, length=128, progress=alone)
    assert (alone.total, alone.steps[-1]) == (3, 3)


@pytest.mark.parametrize("ends", [1.5, 4.5])
def test_stopped_in_a_layer_or_in_the_head_it_leaves_nothing_behind(
    models: tuple[Path, Path], tmp_path: Path, ends: float
) -> None:
    place, progress = ScoringPlace(folder=tmp_path, spill_bytes=0), Counted(ends)
    with pytest.raises(JobCancelled):
        score(*models, TEXT * 40, length=128, progress=progress, place=place)
    assert int(ends) < progress.steps[-1] <= int(ends) + 2
    assert not list(tmp_path.iterdir())


def test_the_interval_agrees_with_scipy() -> None:
    from scipy import stats

    values = [0.1, 0.4, 0.2, 0.35, 0.9]
    expected = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert mean_ci95(values) == pytest.approx(expected, rel=1e-9)


def test_text_shorter_than_a_window_is_refused(models: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidWorkload, match="shorter than one window of 512"):
        score(*models, "def", progress=NoProgress())


def test_another_vocabulary_is_refused(models: tuple[Path, Path], tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other", vocabulary=352, **SHAPE)
    with pytest.raises(InvalidModel, match="vocabulary"):
        score(models[0], other, TEXT, length=16, progress=NoProgress())


def test_a_checkpoint_that_cannot_be_loaded_is_named(models: tuple[Path, Path], tmp_path: Path) -> None:
    broken = tiny_llama(tmp_path / "broken", **SHAPE)
    (broken / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(ModelDamaged, match="broken"):
        score(models[0], broken, TEXT, length=16, progress=NoProgress())


def test_output_that_is_not_finite_fails_in_one_sentence(models: tuple[Path, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    bad = tiny_llama(tmp_path / "bad", **SHAPE)
    tensors = load_file(bad / "model.safetensors")
    tensors["model.norm.weight"][0] = math.nan
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WorkError, match="not finite"):
        score(models[0], bad, TEXT, length=16, progress=NoProgress())


def test_agreement_counts_positions_and_divergences() -> None:
    result = greedy_match([[1, 2, 3, 4], [5, 6], [7]], [[1, 9, 3, 4], [5, 6], [7, 8]])
    assert result["greedy_match"] == 6 / 7
    assert result["first_divergence_share"] == 2 / 8


def test_nothing_to_compare_gives_no_shares() -> None:
    assert greedy_match([], [])["greedy_match"] is None
    assert greedy_match([[]], [[]])["first_divergence_share"] is None


@given(a=answers)
def test_equal_answers_agree_wholly(a: list[list[int]]) -> None:
    result = greedy_match(a, a)
    assert result["greedy_match"] in {1.0, None}
    assert result["first_divergence_share"] in {0.0, None}
