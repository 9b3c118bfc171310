"""The plugin's stand-in for vLLM's expand kernel, against vLLM's own description of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from backend.serving.vllm_plugin.whetstone_vllm import expand, finalizable


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32])
def test_each_value_is_repeated_over_its_requests_tokens_whatever_the_type(dtype: torch.dtype) -> None:
    values = torch.tensor([3, 7, 9], dtype=dtype)
    output = torch.empty(6, dtype=dtype)
    expand(output, values, torch.tensor([2, 5, 6], dtype=torch.int32), 0, 0)
    assert output.tolist() == [3, 3, 7, 7, 7, 9]


def test_a_value_is_replaced_on_the_way() -> None:
    output = torch.empty(3)
    expand(output, torch.tensor([0.0, 0.5]), torch.tensor([1, 3]), 0, 1)
    assert output.tolist() == [1.0, 0.5, 0.5]


def test_what_is_loaded_can_be_finished_as_vllm_finishes_it_and_keeps_a_finish_of_its_own() -> None:
    def plain(value: int) -> int:
        return value + 1

    loaded = finalizable(lambda compiled: SimpleNamespace(_artifacts=SimpleNamespace(compiled_fn=compiled)))
    found = loaded(plain)._artifacts.compiled_fn
    assert found.finalize_loading("config") is None
    assert found(1) == 2
    own = SimpleNamespace(finalize_loading=lambda config: f"finished with {config}")
    assert loaded(own)._artifacts.compiled_fn.finalize_loading("config") == "finished with config"
