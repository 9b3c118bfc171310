"""Weighs each token of the calibration text by how much an error there would change what the model answers.

Each linear's error is counted by X'X, in which all tokens weigh the same. Here a token weighs as much as the squared
gradient of the loss at the outputs of the linears that read it (GuidedQuant, Kim et al. 2025, arXiv 2505.07004, with
one group of output channels). The loss is -log p of a next token that is drawn from the model's own distribution: the
mean of its squared gradient is the Fisher information, which is the second derivative of the KL divergence from the
original (Martens 2014, arXiv 1412.1193, section 5): of the figure that quantized models are judged by.

One pass forward stores what enters each layer, in 16 bit, and one back goes from the last layer to the first: one layer
is in memory at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backend import files
from backend.engines.native.files.resume import WorkFolder
from backend.engines.native.layer_work import Unit
from backend.layered.hidden_states import HiddenStates, mapped_tensor
from backend.layered.layer_passes import LayerPasses

if TYPE_CHECKING:
    import torch

FILE = "loss_weights.pt"
ENTERING = "mapped-entering.bin"
ROWS = 512
"""Positions whose logits are in memory at a time."""
LEAVING = ""
"""The path of the layer itself: the weights of what leaves it."""
Weights = dict[str, "torch.Tensor"]
"""Weight of each token [sequences x length] fp32, their mean 1, by the path of the first linear that reads it, or
`LEAVING`."""


class LossWeights:
    """Measures the weights of all layers. `units` say which linears read one input; no mixtures of experts, whose
    tokens are spread over the experts."""

    def __init__(self, passes: LayerPasses, units: Sequence[Unit], seed: int, spill_bytes: int) -> None:
        self.passes, self.outline, self.seed, self.spill_bytes = passes, passes.outline, seed, spill_bytes
        self.inputs = {names[0]: names for unit in units for names in unit.inputs}
        """The linears that read one input, by the first of them."""

    def measure(self, hidden: HiddenStates, work: WorkFolder, tick: Callable[[float], None]) -> list[Weights]:
        """Return the weights of each layer, or those that an earlier attempt left. `hidden`: what enters the first
        layer; it stays. `tick` hears the share done."""
        import torch

        # 1. What an earlier attempt has.
        path = work.folder / FILE
        if path.is_file():
            stored: list[Weights] = torch.load(path, weights_only=True)
            return stored
        # 2. Forward: entering [layers + 1, sequences, length, hidden] in bfloat16.
        count, shape = self.outline.count, hidden.shape
        entering = mapped_tensor(
            work.folder / ENTERING, (count + 1, *shape), torch.bfloat16, spill_bytes=self.spill_bytes
        )
        entering[0].copy_(hidden.entering)
        for number in range(count):
            self._forward(number, entering)
            tick((number + 1) / count / 4)
        # 3. Back: the gradient [sequences, length, hidden] of the loss at what leaves each layer.
        gradient = self._head_gradient(entering[count])
        weights: list[Weights] = [{} for _ in range(count)]
        for number in reversed(range(count)):
            weights[number] = self._back(number, entering[number], gradient)
            tick(1 / 4 + 3 / 4 * (count - number) / count)
        # 4. Keep them for a later attempt.
        del entering
        (work.folder / ENTERING).unlink(missing_ok=True)
        with files.staged_file(path) as staged:
            torch.save(weights, staged)
        return weights

    def _spans(self) -> list[slice]:
        count, size = len(self.passes.tokens), self.passes.batch
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    @contextmanager
    def _filled(self, number: int) -> Iterator[Any]:
        layer = self.outline.fill(number, self.passes.devices[0])
        try:
            yield layer
        finally:
            self.outline.drop(number)

    def _forward(self, number: int, entering: torch.Tensor) -> None:
        with self._filled(number) as layer:
            for span in self._spans():
                states = entering[number, span].to(self.passes.devices[0]).float()
                entering[number + 1, span].copy_(self.passes.run_batch(number, layer, states))

    def _head_gradient(self, leaving: torch.Tensor) -> torch.Tensor:
        """Return the gradient at what left the last layer [sequences, length, hidden] fp32."""
        import torch

        generator = torch.Generator().manual_seed(self.seed % 2**63)
        gradient = torch.zeros(leaving.shape)
        with self.outline.head(self.passes.devices[0], gradients=True) as logits:
            for sequence, states in enumerate(leaving):
                for start in range(0, len(states), ROWS):
                    rows = states[start : start + ROWS].to(self.passes.devices[0]).float().requires_grad_()
                    logs = logits(rows).float().log_softmax(-1)
                    drawn = torch.multinomial(logs.detach().exp().cpu(), 1, generator=generator).to(logs.device)
                    logs.gather(1, drawn).sum().neg().backward()  # type: ignore[no-untyped-call]
                    if rows.grad is not None:
                        gradient[sequence, start : start + ROWS] = rows.grad.cpu()
        return gradient

    def _back(self, number: int, entering: torch.Tensor, gradient: torch.Tensor) -> Weights:
        """Take `gradient` from what leaves the layer to what enters it, in place; return the layer's weights."""
        import torch

        squares = {path: torch.zeros(gradient.shape[:2]) for path in self.inputs}
        squares[LEAVING] = gradient.square().sum(-1)
        with self._filled(number) as layer:
            for span in self._spans():
                states = entering[span].to(self.passes.devices[0]).float().requires_grad_()
                with _squared_gradients(layer, self.inputs) as collected:
                    left = self.passes.run_with(number, {}, states)
                    left.backward(gradient[span].to(left))  # type: ignore[no-untyped-call]
                if states.grad is not None:
                    gradient[span] = states.grad.cpu()
                for path, square in collected.items():
                    squares[path][span] = square.view(-1, gradient.shape[1]).cpu()
        return {path: _with_mean_one(square.flatten()) for path, square in squares.items()}


def _with_mean_one(weights: torch.Tensor) -> torch.Tensor:
    """Scale the weights [tokens] so that their mean is 1; ones where all are zero or one is not finite."""
    import torch

    mean = float(weights.mean())
    return weights / mean if 0 < mean < float("inf") else torch.ones_like(weights)


@contextmanager
def _squared_gradients(layer: Any, inputs: Mapping[str, Sequence[str]]) -> Iterator[dict[str, torch.Tensor]]:
    """Collect, while the layer runs forward and back, the sum of the squared gradients at the outputs of the linears of
    each input [tokens]."""
    sums: dict[str, Any] = defaultdict(float)

    def watcher(first: str) -> Any:
        def watch(_module: Any, _args: Any, output: torch.Tensor) -> None:
            def add(gradient: torch.Tensor) -> None:
                sums[first] = sums[first] + gradient.float().square().sum(-1).flatten()

            output.register_hook(add)  # type: ignore[no-untyped-call]

        return watch

    hooks = [
        layer.get_submodule(path).register_forward_hook(watcher(first))
        for first, paths in inputs.items()
        for path in paths
    ]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()
