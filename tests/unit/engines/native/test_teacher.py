"""The teacher of a recovery: the original's own logits, its layers run once a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.engines.native.recovery import teacher as module
from backend.engines.native.recovery.teacher import Teacher
from tests import families


def counted(teacher: Teacher) -> list[int]:
    """A number for each pass through the model's layers from here on: the sequences in it."""
    passes: list[int] = []
    teacher.model.base_model.register_forward_hook(lambda _, __, output: passes.append(len(output[0])))
    return passes


def logits_of(folder: Path, tokens: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits


@pytest.fixture
def tokens() -> Any:
    import torch

    return torch.randint(1, 256, (3, 24), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom", "falcon-7b", "cohere"])
def test_a_sequence_that_comes_again_costs_the_head_alone(tmp_path: Path, tokens: Any, kind: str) -> None:
    import torch

    folder = families.tiny(tmp_path / kind, kind, layers=1)
    teacher = Teacher(folder, "cpu")
    torch.testing.assert_close(teacher.logits(tokens), logits_of(folder, tokens))
    passes = counted(teacher)
    again = teacher.logits(tokens.flip(0))
    assert not passes
    torch.testing.assert_close(again, logits_of(folder, tokens.flip(0)))


def test_its_numbers_do_not_depend_on_the_sequences_seen_before(tmp_path: Path, tokens: Any) -> None:
    import torch

    folder = families.tiny(tmp_path / "llama", "llama", layers=1)
    one, other = Teacher(folder, "cpu"), Teacher(folder, "cpu")
    one.logits(tokens)
    other.logits(tokens[2:])
    assert torch.equal(one.logits(tokens[1:]), other.logits(tokens[1:]))


def test_a_model_that_changes_the_logits_after_its_head_runs_whole(tmp_path: Path, tokens: Any) -> None:
    import torch

    folder = families.tiny(tmp_path / "gemma2", "gemma2", layers=1)
    teacher = Teacher(folder, "cpu")
    for _ in range(2):
        torch.testing.assert_close(teacher.logits(tokens), logits_of(folder, tokens))
    assert teacher.head is None and not teacher.kept


def test_no_more_is_kept_than_the_plan_counts(tmp_path: Path, tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_SEQUENCES", 2)
    teacher = Teacher(families.tiny(tmp_path / "llama", "llama", layers=1), "cpu")
    teacher.logits(tokens)
    passes = counted(teacher)
    teacher.logits(tokens)
    assert passes == [1]
