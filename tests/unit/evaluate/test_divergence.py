"""Two models' logits in fp32 and kept buffers against the definitions in double precision; the original's states
kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.evaluate.quality import hidden_state_cache
from backend.evaluate.quality.divergence import FAR, LogitComparer, positions_in_doubles
from backend.evaluate.quality.model_logits import ScoringPlace
from backend.evaluate.quality.scoring import score
from tests.tiny import TEXT, tiny_llama

SHAPE: dict[str, Any] = {"hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 64}


def pair(apart: float, rows: int, vocabulary: int) -> Any:
    import torch

    seed = torch.Generator().manual_seed(0)
    reference = torch.randn(rows, vocabulary, generator=seed) * 3 + 20
    logits = reference + torch.randn(rows, vocabulary, generator=seed) * apart
    return reference, logits, torch.randint(0, vocabulary, (rows,), generator=seed)


@pytest.mark.parametrize(("vocabulary", "rows"), [(320, 40), (49_152, 12), (262_144, 3)])
@pytest.mark.parametrize("apart", [0.001, 0.1, 3.0])
def test_single_precision_gives_the_figures_of_double_precision(vocabulary: int, rows: int, apart: float) -> None:
    import torch

    inputs = pair(apart, rows, vocabulary)
    result, exact = LogitComparer(vocabulary, torch.device("cpu")).positions(*inputs), positions_in_doubles(*inputs)
    torch.testing.assert_close(result[:, :2], exact[:, :2], rtol=0, atol=1e-5)
    torch.testing.assert_close(result[:, 2], exact[:, 2], rtol=1e-4, atol=1e-11)
    assert float((result[:, 2].mean() / exact[:, 2].mean() - 1).abs()) < 1e-5
    assert result[:, 3].tolist() == exact[:, 3].tolist()


def test_a_token_that_the_original_never_chooses_is_not_lost() -> None:
    """e^88 is the largest number of fp32, and what has a probability below e^-104 has none there."""
    import torch

    reference, logits, targets = pair(0.1, 4, 320)
    reference[1, 7] -= 2 * FAR
    logits[1, 7] += 3
    reference[2, 9] -= 300
    logits[2, 9] += 300
    divergences = LogitComparer(320, torch.device("cpu")).positions(reference, logits, targets)
    torch.testing.assert_close(divergences, positions_in_doubles(reference, logits, targets), rtol=1e-4, atol=1e-5)


def test_the_same_logits_are_the_same_to_the_last_bit_and_bad_ones_stay_bad() -> None:
    import torch

    reference, _, targets = pair(0.1, 6, 320)
    comparer = LogitComparer(320, torch.device("cpu"))
    divergences = comparer.positions(reference, reference, targets)
    assert (
        divergences[:, 2].tolist() == [0] * 6
        and divergences[:, 3].tolist() == [1] * 6
        and torch.equal(divergences[:, 0], divergences[:, 1])
    )
    broken = reference.clone()
    broken[3, 5] = float("nan")
    assert bool(comparer.positions(reference, broken, targets)[3].isnan().any())


@pytest.mark.parametrize("vocabulary", [49_152, 131_072, 262_144])
def test_the_buffers_do_not_grow_with_the_vocabulary(vocabulary: int) -> None:
    import torch

    comparer = LogitComparer(vocabulary, torch.device("cpu"))
    assert comparer.rows * vocabulary <= 1 << 18


class Counted(NoProgress):
    def __init__(self) -> None:
        self.steps = list[float]()

    def advance(self, done: float, **data: Any) -> None:
        self.steps.append(done)


def scored(models: tuple[Path, Path], folder: Path) -> tuple[dict[str, Any], list[float]]:
    progress = Counted()
    return score(*models, TEXT, length=32, progress=progress, place=ScoringPlace(cache=folder)), progress.steps


def test_the_original_is_computed_once_a_model_and_text(tmp_path: Path) -> None:
    models = tiny_llama(tmp_path / "a", **SHAPE), tiny_llama(tmp_path / "b", seed=1, **SHAPE)
    first, steps = scored(models, tmp_path / "kept")
    assert steps[0] < 1
    again, steps = scored(models, tmp_path / "kept")
    assert again == first and steps[0] > 2, "its two layers are not computed again"
    assert first == score(*models, TEXT, length=32, progress=NoProgress())
    (file,) = (tmp_path / "kept").iterdir()
    file.write_bytes(file.read_bytes()[:200])
    assert scored(models, tmp_path / "kept")[0] == first, "a file that is torn is written anew"
    tiny_llama(tmp_path / "a", seed=2, **SHAPE)
    other, steps = scored(models, tmp_path / "kept")
    assert steps[0] < 1 and other["perplexity_original"] != first["perplexity_original"]


def test_what_was_used_longest_ago_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tiny_llama(tmp_path / "a", **SHAPE), tiny_llama(tmp_path / "b", seed=1, **SHAPE)
    folder = tmp_path / "kept"
    scored(models, folder)
    (first,) = folder.iterdir()
    os.utime(first, (0, 0))
    monkeypatch.setattr(hidden_state_cache, "CAP_BYTES", first.stat().st_size * 3 // 2)
    scored((models[1], models[0]), folder)
    (second,) = folder.iterdir()
    assert second != first
    monkeypatch.setattr(hidden_state_cache, "CAP_BYTES", 100)
    scored(models, folder)
    assert [*folder.iterdir()] == [second], "what is larger than all of it is not kept"
