"""What stands behind the last layer: from hidden states to logits, through the model's own forward.

The layers only return what is put in, so that a family's norms, scales and caps need no code here. Knows no quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backend.engines.native.outline import Outline

if TYPE_CHECKING:
    import torch

Logits = Callable[["torch.Tensor"], "torch.Tensor"]
"""From what leaves the last layer [rows, hidden] to logits [rows, vocabulary], both fp32."""


@contextmanager
def head(outline: Outline, as_tuple: bool, device: str) -> Iterator[Logits]:
    """The head of one sequence, with all weights outside the layers loaded for as long as this lasts.

    `as_tuple`: the model's layers return a tuple.
    """
    import torch

    base, output = outline.model.base_model, outline.model.get_output_embeddings()
    path = next(path for path, module in outline.model.named_modules() if module is output)
    outline._buffers(base, device)
    outline._load(outline.model, dict(_wanted(outline, path)), device)
    if outline.config.get_text_config().tie_word_embeddings:
        output.weight = base.get_input_embeddings().weight

    def logits(rows: torch.Tensor) -> torch.Tensor:
        states = rows[None].to(device)
        tokens = torch.ones(states.shape[:2], dtype=torch.long, device=device)
        with torch.no_grad(), _returning((states, None) if as_tuple else states, outline.layers):
            found: torch.Tensor = outline.model(tokens, past_key_values=outline.cache, use_cache=True).logits[0]
        return found.float()

    try:
        yield logits
    finally:
        for module in [child for child in base.children() if child is not outline.layers] + [output]:
            module.to_empty(device="meta")


def _wanted(outline: Outline, output: str) -> Iterator[tuple[str, str]]:
    """The names of tensors outside the layers in the checkpoint, and their paths: checkpoints may leave out the name of the base
    model, and call the head otherwise."""
    paths = outline.model.state_dict().keys()
    prefix, called = outline.family.layers.partition(".")[0] + ".", outline.family.head + "."
    for name in outline.outside_names():
        every = (name, prefix + name, *([f"{output}.{name.removeprefix(called)}"] if name.startswith(called) else []))
        yield from ((name, path) for path in every if path in paths)


@contextmanager
def _returning(value: Any, layers: Any) -> Iterator[None]:
    """Every layer returns `value`, whatever enters it."""

    def forward(*_: Any, **__: Any) -> Any:
        return value

    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
