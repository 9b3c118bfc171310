"""neuronx_distributed_inference.utils.accuracy as far as it is used."""

from __future__ import annotations

from typing import Any

import neuron_recorder as recorder


def check_accuracy(
    neuron_model: Any,
    tokenizer: Any,
    generation_config: Any = None,
    expected_token_ids: Any = None,
    num_tokens_to_check: Any = None,
) -> None:
    recorder.record(
        "neuronx_distributed_inference.utils.accuracy.check_accuracy", num_tokens_to_check=num_tokens_to_check
    )
    assert neuron_model.is_loaded_to_neuron


def check_accuracy_logits(
    neuron_model: Any,
    tokenizer: Any = None,
    generation_config: Any = None,
    prompt: Any = None,
    expected_logits: Any = None,
    divergence_difference_tol: float = 0.001,
    tol_map: Any = None,
    num_tokens_to_check: Any = None,
) -> None:
    recorder.record(
        "neuronx_distributed_inference.utils.accuracy.check_accuracy_logits", num_tokens_to_check=num_tokens_to_check
    )
    assert neuron_model.is_loaded_to_neuron
