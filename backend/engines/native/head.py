"""What stands behind the last layer: from hidden states to logits, through the model's own forward.

The layers only pass on what is put into the first, so that norms, scales and caps of a family need no code here. Knows nothing of
quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backend.engines.native.outline import Outline

if TYPE_CHECKING:
    import torch

Logits = Callable[["torch.Tensor"], "torch.Tensor"]
"""From what leaves the last layer [sequences, length, hidden] to logits [sequences, length, vocabulary], both fp32."""


@contextmanager
def head(outline: Outline, tokens: torch.Tensor, as_tuple: bool, device: str) -> Iterator[Logits]:
    """The head, with its weights loaded for as long as this lasts. `tokens` [1, length] are any of the text's, of which only the
    length counts; `as_tuple` says that the model's layers return a tuple. Raises ModelDamaged where a weight is missing.
    """
    import torch

    with outline.outside(device) as base, _output(outline, base, device):

        def logits(states: torch.Tensor) -> torch.Tensor:
            with torch.no_grad(), _injected(outline.layers, states.to(device), as_tuple):
                shaped = tokens.expand(len(states), -1).to(device)
                found: torch.Tensor = outline.model(shaped, past_key_values=outline.cache, use_cache=True).logits
            return found.float()

        yield logits


@contextmanager
def _output(outline: Outline, base: Any, device: str) -> Iterator[None]:
    module = outline.model.get_output_embeddings()
    stored = [name for name in outline.source.files if name.rpartition(".")[0] == outline.family.head]
    if outline.config.get_text_config().tie_word_embeddings:
        module.weight = base.get_input_embeddings().weight
    else:
        outline.load(module, {name: name.rpartition(".")[2] for name in stored}, device)
    try:
        yield
    finally:
        module.to_empty(device="meta")


@contextmanager
def _injected(layers: Any, states: torch.Tensor, as_tuple: bool) -> Iterator[None]:
    """Every layer returns `states`, whatever enters it."""

    def forward(*_: Any, **__: Any) -> Any:
        return (states, None) if as_tuple else states

    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
