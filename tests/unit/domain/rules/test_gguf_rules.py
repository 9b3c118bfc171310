"""What is refused of a GGUF step and of the engine that serves its file, each with the nearest recipe that works."""

from __future__ import annotations

from typing import Any

import pytest

from backend.domain.model.gguf import file_types
from backend.domain.recipe.recipe import read
from backend.domain.recipe.serving_engines import OPENVINO_TENSORS
from backend.domain.rules import check
from backend.domain.rules.plan import Verdict
from backend.domain.rules.target_facts import TargetFacts
from tests.helpers.checked_cards import card

HERE = TargetFacts(cores=2)


def verdict(*others: Any, serving: Any = None, facts: TargetFacts = HERE, sizes: Any = None, **step: Any) -> Verdict:
    steps = [{"quantize": {"method": "gguf", **step}}, *others]
    return check.check_recipe(card(**sizes or {}), read({"steps": steps, "serving": serving or {}}), facts)


@pytest.mark.parametrize(
    ("result", "words", "nearest"),
    [
        (verdict({"compile": {}}), "leave `compile` out", "quantize"),
        (verdict({"prune": {"method": "wanda"}}), "leave `prune` out", "quantize"),
        (verdict(serving={"engine": "llama.cpp", "threads": 3}), "use at most 2", "quantize"),
        (verdict(serving={"engine": "llama.cpp", "batch_threads": 3}), "use at most 2", "quantize"),
    ],
)
def test_what_does_not_go_with_a_gguf_file_is_left_out(result: Verdict, words: str, nearest: str) -> None:
    assert [words in reason.message for reason in result.reasons] == [True]
    assert result.suggestion is not None and [step.technique for step in result.suggestion.steps] == [nearest]
    assert result.suggestion.serving.engine == "llama.cpp" and result.suggestion.serving.threads is None


def test_threads_of_other_machines_are_not_judged() -> None:
    assert verdict(serving={"engine": "llama.cpp", "threads": 64}, facts=TargetFacts()).valid


@pytest.mark.parametrize("name", file_types.TYPES)
@pytest.mark.parametrize("width", [512, 576])
def test_openvino_is_given_only_types_that_it_reads(name: str, width: int) -> None:
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "heads": width // 64, "kv_heads": width // 64}
    types = file_types.tensor_types(card(**sizes), name)
    result = verdict(type=name, serving={"engine": "openvino"}, sizes=sizes)
    assert result.valid == (types <= OPENVINO_TENSORS)
    if not result.valid:
        assert "which OpenVINO GenAI does not read: use `type: q" in result.reasons[0].message
        assert result.suggestion is not None and result.suggestion.serving.engine == "openvino"
        assert check.check_recipe(card(**sizes), result.suggestion, HERE).valid


def test_rows_of_part_blocks_are_stored_in_other_types() -> None:
    odd = card(hidden_size=576, intermediate_size=1536)
    assert file_types.tensor_types(odd, "q4_k_m") == {"F32", "Q4_K", "Q6_K", "Q5_0", "Q8_0"}
    assert file_types.tensor_types(card(hidden_size=512, intermediate_size=1536), "q4_k_m") == {"F32", "Q4_K", "Q6_K"}
