"""The plugin's stand-ins for vLLM's kernels, against vLLM's own description of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backend.serving.vllm_plugin.whetstone_vllm import (
    expand,
    finalizable,
    flat,
    greedy,
    mapped,
    random,
    same_graph,
    undrawn,
)


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


def test_loaded_weights_are_finished_as_vllm_does_and_keep_their_own_finish() -> None:
    def plain(value: int) -> int:
        return value + 1

    loaded = finalizable(lambda compiled: SimpleNamespace(_artifacts=SimpleNamespace(compiled_fn=compiled)))
    result = loaded(plain)._artifacts.compiled_fn
    assert result.finalize_loading("config") is None
    assert result(1) == 2
    own = SimpleNamespace(finalize_loading=lambda config: f"finished with {config}")
    assert loaded(own)._artifacts.compiled_fn.finalize_loading("config") == "finished with config"


@pytest.mark.parametrize(
    ("method", "hashed"), [("ngram", "None"), ("custom_class", "None"), ("eagle3", "its own"), ("mtp", "its own")]
)
def test_guesses_without_weights_are_hashed_as_no_speculation_is(method: str, hashed: str) -> None:
    assert same_graph(lambda config: "its own")(SimpleNamespace(method=method)) == hashed


def test_heads_say_that_they_took_the_reduced_vocabulary_where_they_have_one() -> None:
    load = mapped(lambda heads, weights: set(weights))
    assert load(SimpleNamespace(token_map=torch.tensor([3, 5])), ["lm_head.weight"]) == {"lm_head.weight", "token_map"}
    assert load(SimpleNamespace(token_map=None), ["lm_head.weight"]) == {"lm_head.weight"}


def test_an_input_of_three_dimensions_is_multiplied_as_a_matrix() -> None:
    """Phi in 8 bit on a processor with AMX ended its server at the first request."""
    weights, scale = torch.randn(6, 4), object()

    def product(kernel: object, layer: torch.Tensor, x: torch.Tensor, bias: object) -> torch.Tensor:
        assert x.dim() == 2 and bias is scale
        return x @ layer.T

    batch = torch.randn(1, 5, 4)
    assert torch.equal(flat(product)(None, weights, batch, scale), (batch[0] @ weights.T)[None])
    assert torch.equal(flat(product)(None, weights, batch[0], scale), batch[0] @ weights.T)


def test_a_request_whose_prompt_is_not_read_whole_keeps_its_generator_where_it_was() -> None:
    observed: list[list[int]] = []

    def note(runner: Any, answer: str) -> str:
        observed.append(sorted(runner.input_batch.generators))
        return answer

    batch = SimpleNamespace(generators={0: "first", 2: "third"}, num_reqs=3)
    runner = SimpleNamespace(
        input_batch=batch, discard_request_mask=SimpleNamespace(np=torch.tensor([False, True, True, True]).numpy())
    )
    sample, settle = undrawn(note, note)
    assert (sample(runner, "sampled"), settle(runner, "settled")) == ("sampled", "settled")
    assert observed == [[0], [0]]
    assert batch.generators == {0: "first", 2: "third"}


UNSEEN = -1


def test_synthetic_acceptance_takes_drafts_up_to_a_refusal_then_one_target_token() -> None:
    """Three requests of 3, 3 and 2 drafted tokens: all accepted (and the bonus), refused at the second, refused at
    padding."""
    output = torch.full((3, 4), UNSEEN, dtype=torch.int32)
    drafted, own = torch.tensor([11, 12, 13, 21, 22, 23, -1, 32]), torch.tensor([1, 2, 3, 4, 5, 6, 7, 8])
    uniform = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.6, 0.1, 0.1, 0.1], dtype=torch.float64)
    rates, bonus = torch.tensor([0.9, 0.5, 0.5]), torch.tensor([[91], [92], [93]], dtype=torch.int32)
    requests = (output, torch.tensor([3, 6, 8], dtype=torch.int32), drafted, own, bonus, None, 3, uniform, rates)
    greedy(_never)(*requests, SYNTHETIC_MODE=True)
    assert output.tolist() == [[11, 12, 13, 91], [21, 5, UNSEEN, UNSEEN], [7, UNSEEN, UNSEEN, UNSEEN]]


def test_each_kernel_leaves_other_requests_alone_and_vllm_what_is_not_synthetic() -> None:
    greedily = torch.tensor([True, False])
    ends, drafted, own, bonus = (
        torch.tensor([1, 2]),
        torch.tensor([11, 21]),
        torch.tensor([1, 2]),
        torch.tensor([[91], [92]]),
    )
    uniform, rates = torch.tensor([0.1, 0.1]), torch.tensor([0.5])
    for wrapped, rest, expected in (
        (greedy(_never), (own, bonus, greedily, 1, uniform, rates), [[11, 91], [UNSEEN, UNSEEN]]),
        (random(_never), (None, None, bonus, own, uniform, greedily, 1, 100, rates), [[UNSEEN, UNSEEN], [21, 92]]),
    ):
        output = torch.full((2, 2), UNSEEN)
        wrapped(output, ends, drafted, *rest, SYNTHETIC_MODE=True)
        assert output.tolist() == expected
    observed: list[Any] = []
    greedy(lambda *items: observed.append(items))("output", "ends", "drafted", "own", "bonus", "greedy", 3)
    random(lambda *items, **named: observed.append((*items, named)))(*"abcdefghi", 3, 100, NO_DRAFT_PROBS=True)
    assert observed == [
        ("output", "ends", "drafted", "own", "bonus", "greedy", 3),
        (*"abcdefghi", 3, 100, {"NO_DRAFT_PROBS": True}),
    ]


def _never(*inputs: object) -> None:
    raise AssertionError("vLLM's own kernel has no synthetic acceptance")
