"""Runs calibration sequences through one decoder layer, in batches, on one device or spread over several.

Knows how a layer is called, and nothing of what is collected or why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from backend.domain.errors import WorkError
from backend.engines.native.hidden import Hidden
from backend.engines.native.outline import Call, Outline, moved
from backend.engines.native.statistics import Tally, tapped

if TYPE_CHECKING:
    import torch

BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Tokens a batch on each kind of device."""

Taps = dict[str, Tally]


def devices() -> tuple[str, ...]:
    """Every CUDA device, else the processor, as torch names them."""
    import torch

    return tuple(f"cuda:{number}" for number in range(torch.cuda.device_count())) or ("cpu",)


class Passes:
    """`tokens` [sequences, length] are embedded by `embed`, then `through` takes them from layer to layer."""

    def __init__(self, outline: Outline, tokens: torch.Tensor, devices: Sequence[str], warn: Callable[[str], None]) -> None:
        self.outline, self.tokens, self.devices, self.warn = outline, tokens, tuple(devices), warn
        kind = self.devices[0].partition(":")[0]
        self.batch = max(1, BATCH_TOKENS.get(kind, BATCH_TOKENS["cuda"]) // tokens.shape[1])
        self.as_tuple = False
        """Whether the layers return a tuple, known after the first."""
        self._calls: dict[int, list[Call]] = {}

    def embed(self, hidden: Hidden) -> None:
        """Fill what enters the first layer."""
        import torch

        start = 0
        for states, calls in self.outline.embed(torch.split(self.tokens, self.batch), self.devices[0]):
            hidden.entering[start : start + len(states)] = states.cpu()
            self._calls[len(states)] = calls
            start += len(states)

    def calls(self, size: int, number: int) -> Call:
        """What layer `number` is called with for `size` sequences."""
        if size not in self._calls:
            ((_, self._calls[size]),) = self.outline.embed([self.tokens[:1].expand(size, -1)], self.devices[0])
        return self._calls[size][number]

    def through(
        self, number: int, hidden: Hidden, taps: Callable[[str], Taps] | None, keep: bool, tick: Callable[[float], None]
    ) -> Taps:
        """Run layer `number` (filled, on the first device) over all sequences; return what was tapped, by path.

        `taps` makes fresh tallies for a device; `keep` stores what leaves the layer; `tick` hears the share done. A device that
        runs out of memory gets half the sequences at a time from then on. Raises WorkError when one sequence is too much.
        """
        layers = [self.outline.layers[number], *(self.outline.replica(number, device) for device in self.devices[1:])]
        while True:
            tallies = [taps(device) if taps else {} for device in self.devices]
            try:
                self._spread(number, layers, hidden, tallies, keep, tick)
                return _merged(tallies)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                self._halve()

    def _halve(self) -> None:
        if self.batch == 1:
            raise WorkError("Memory ran out on a single sequence: use shorter sequences or a device with more memory.")
        self.batch //= 2
        self.warn(f"Memory ran out: going on with {self.batch} sequences at a time.")

    def _spread(
        self, number: int, layers: list[Any], hidden: Hidden, tallies: list[Taps], keep: bool, tick: Callable[[float], None]
    ) -> None:
        spans = [slice(start, start + self.batch) for start in range(0, len(self.tokens), self.batch)]
        for size in {len(self.tokens[span]) for span in spans}:
            self.calls(size, number)
        places = list(zip(self.devices, layers, tallies, strict=True))

        def work(place: int) -> None:
            device, layer, tally = places[place]
            with tapped(layer, tally):
                for done, span in enumerate(spans[place :: len(places)], start=1):
                    leaving = self.run(number, layer, hidden.entering[span].to(device))
                    if keep:
                        hidden.leaving[span] = leaving.cpu()
                    if place == 0:
                        tick(min(1.0, done * len(places) / len(spans)))

        if len(places) == 1:
            work(0)
            return
        with ThreadPoolExecutor(len(places)) as pool:
            list(pool.map(work, range(len(places))))

    def run(self, number: int, layer: Any, entering: torch.Tensor) -> torch.Tensor:
        """What leaves a filled layer [sequences, length, hidden] where `entering` enters it, on the device of that."""
        import torch

        call = self.calls(len(entering), number)
        if len(self.devices) > 1:
            call = moved(call, str(entering.device))
        with torch.no_grad():
            left: torch.Tensor | tuple[torch.Tensor, ...] = layer(entering, *call.args, **call.kwargs)
        self.as_tuple = isinstance(left, tuple)
        return left[0] if isinstance(left, tuple) else left


def out_of_memory(error: BaseException) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _merged(tallies: list[Taps]) -> Taps:
    first, *rest = tallies
    for other in rest:
        for path, tally in other.items():
            first[path].merge(tally)
    return first
