"""Runs sequences through one decoder layer, in batches, on one device or spread over several.

Knows how a layer is called, and nothing of what is collected or why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from backend.domain.errors import WorkError
from backend.domain.needs.job_memory import BATCH_TOKENS
from backend.layered.hidden_states import HiddenStates
from backend.layered.matrix_products import half_precision
from backend.layered.outline import Call, Outline, moved

if TYPE_CHECKING:
    import torch

TOKENS_BY_DEVICE = {"cpu": BATCH_TOKENS, "cuda": 16384}
"""Tokens a batch on each kind of device."""
MATRICES = "Memory ran out on the matrices of one layer: use a device with more memory, or fewer calibration sequences."


class Tap(Protocol):
    """Collects what one module of a layer reads."""

    def add(self, rows: torch.Tensor) -> None:
        """`rows` [tokens, features] fp32."""

    def seek(self, token: int) -> None:
        """The rows that come next begin with this token of all sequences."""

    def merge(self, other: Self) -> None:
        """Add what another device collected."""


T = TypeVar("T", bound=Tap)


def devices() -> tuple[str, ...]:
    """Return every CUDA device, or the processor if there is none, as torch names them."""
    import torch

    return tuple(f"cuda:{number}" for number in range(torch.cuda.device_count())) or ("cpu",)


class LayerPasses:
    """`tokens` [sequences, length] are embedded by `embed`, then `through` takes them from layer to layer.

    `half`: in bfloat16 where the hardware has it, the residual stream and norms in fp32; else all in fp32.
    """

    def __init__(
        self,
        outline: Outline,
        tokens: torch.Tensor,
        devices: Sequence[str],
        warn: Callable[[str], None],
        *,
        half: bool = False,
    ) -> None:
        # 1. The model, the text and the devices.
        self.half = half
        self.outline, self.tokens, self.devices, self.warn = outline, tokens, tuple(devices), warn
        # 2. Sequences per batch, by the kind of device.
        kind = self.devices[0].partition(":")[0]
        self.batch = max(1, TOKENS_BY_DEVICE.get(kind, TOKENS_BY_DEVICE["cuda"]) // tokens.shape[1])
        self._calls: dict[int, list[Call]] = {}
        self.given_up = Event()
        """Set when a pass is over for one device, by an error or a cancel: the others begin no further batch."""

    def embed(self, hidden: HiddenStates) -> None:
        """Fill what enters the first layer."""
        import torch

        start = 0
        for states, calls in self.outline.embed(torch.split(self.tokens, self.batch), self.devices[0]):
            hidden.entering[start : start + len(states)] = states.cpu()
            self._calls[len(states)] = calls
            start += len(states)

    def calls(self, size: int, number: int) -> Call:
        """Return the call of layer `number` for `size` sequences."""
        if size not in self._calls:
            ((_, self._calls[size]),) = self.outline.embed([self.tokens[:1].expand(size, -1)], self.devices[0])
        return self._calls[size][number]

    def run_layer(
        self,
        number: int,
        hidden: HiddenStates,
        taps: Callable[[str], dict[str, T]] | None,
        keep: bool,
        tick: Callable[[float], None],
    ) -> dict[str, T]:
        """Run layer `number` (filled, on the first device) over all sequences; return what was tapped, by path.

        `taps` makes fresh taps for a device; `keep` stores what leaves the layer; `tick` hears the share done. A device
        that runs out of memory gets half the sequences at a time from then on. Raises WorkError when one sequence is
        too much.
        """
        # 1. A copy of the layer on every device.
        layers = [self.outline.layers[number], *(self.outline.replica(number, device) for device in self.devices[1:])]
        # 2. Run all sequences with fresh taps; if memory runs out, begin again with half as many at a time.
        while True:
            tallies = [taps(device) if taps else {} for device in self.devices]
            try:
                self._run_once(number, list(zip(self.devices, layers, tallies, strict=True)), hidden, keep, tick)
                return _merged(tallies)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                self.halve()

    def halve(self) -> None:
        """Halve the sequences per batch from now on. Raises WorkError when one sequence is too much."""
        if self.batch == 1:
            raise WorkError("Memory ran out on a single sequence: use shorter sequences or a device with more memory.")
        self.batch //= 2
        plural = "sequence" if self.batch == 1 else "sequences"
        self.warn(f"Memory ran out: going on with {self.batch} {plural} at a time.")

    def _run_once(
        self,
        number: int,
        places: Sequence[tuple[str, Any, Mapping[str, Tap]]],
        hidden: HiddenStates,
        keep: bool,
        tick: Callable[[float], None],
    ) -> None:
        """Run all sequences once over `places`: each a device, the layer's copy there and its fresh taps."""
        # 1. Cut the sequences into batches, and prepare the call of each batch size.
        count = len(self.tokens)  # `hidden` may hold more than these, and what lies behind them is not theirs
        spans = [slice(start, min(start + self.batch, count)) for start in range(0, count, self.batch)]
        for size in {span.stop - span.start for span in spans}:
            self.calls(size, number)
        # 2. Each device takes every n-th batch [batch, length, hidden].
        self.given_up.clear()

        def work(place: int) -> None:
            device, layer, tally = places[place]
            with tapped(layer, tally, stop=not keep and not self.outline.cache.recording):
                for done, span in enumerate(spans[place :: len(places)], start=1):
                    if self.given_up.is_set():
                        return
                    for tap in tally.values():
                        tap.seek(span.start * self.tokens.shape[1])
                    with suppress(AllTapsRead):
                        leaving = self.run_batch(number, layer, hidden.entering[span].to(device))
                        if keep:
                            hidden.leaving[span].copy_(leaving)
                    if place == 0:
                        tick(min(1.0, done * len(places) / len(spans)))

        # 3. Run in this thread on one device, in a thread per device on several.
        if len(places) == 1:
            work(0)
            return
        with ThreadPoolExecutor(len(places)) as pool:
            try:
                list(pool.map(work, range(len(places))))
            finally:
                self.given_up.set()  # a cancelled job waits for the batches at hand, not for all

    def run_with(self, number: int, weights: Mapping[str, torch.Tensor], entering: torch.Tensor) -> torch.Tensor:
        """Run a filled layer on `entering` [sequences, length, hidden] on the first device, with `weights` in place of
        those of the linears at these paths. Gradients reach them where they are asked for."""
        import torch

        call = self.calls(len(entering), number)
        replaced = {f"{path}.weight": weight for path, weight in weights.items()}
        with half_precision(self.devices[0], self.half):
            left: torch.Tensor | tuple[torch.Tensor, ...] = torch.func.functional_call(
                self.outline.layers[number], replaced, (entering, *call.args), call.kwargs
            )
        return left[0] if isinstance(left, tuple) else left

    def run_batch(self, number: int, layer: Any, entering: torch.Tensor) -> torch.Tensor:
        """Run a filled layer on `entering` [sequences, length, hidden]; return what leaves it, same shape and
        device."""
        import torch

        call = self.calls(len(entering), number)
        if len(self.devices) > 1:
            call = moved(call, str(entering.device))
        with torch.no_grad(), half_precision(str(entering.device), self.half):
            left: torch.Tensor | tuple[torch.Tensor, ...] = layer(entering, *call.args, **call.kwargs)
        return left[0] if isinstance(left, tuple) else left


def out_of_memory(error: BaseException) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class AllTapsRead(Exception):
    """Ends a layer's call early: all its taps were read, and the rest is not needed."""


@contextmanager
def tapped(layer: Any, taps: Mapping[str, Tap], *, stop: bool = False) -> Iterator[None]:
    """Send what the module at each path of `layer` reads to its tap, while the context lasts.

    With `stop` a call of the layer ends by AllTapsRead as soon as every one of them was called.
    """
    # 1. Each tap reads what its module reads; with `stop` the last one ends the call.
    read_paths: set[str] = set()

    def observer(path: str) -> Any:
        def observe(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
            taps[path].add(args[0].flatten(0, -2).float())
            read_paths.add(path)
            if stop and len(read_paths) == len(taps):
                raise AllTapsRead

        return observe

    # 2. Hook every module, and the layer itself, which begins a new call.
    hooks = [layer.get_submodule(path).register_forward_pre_hook(observer(path)) for path in taps]
    hooks.append(layer.register_forward_pre_hook(lambda *_: read_paths.clear()))
    # 3. Run, and remove the hooks whatever happens.
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def memory_errors(sentence: str = MATRICES) -> Iterator[None]:
    """Turn memory that runs out, where there is no batch left to halve, into WorkError."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise WorkError(sentence) from None


def _merged(tallies: list[dict[str, T]]) -> dict[str, T]:
    first, *rest = tallies
    for other in rest:
        for path, tap in other.items():
            first[path].merge(tap)
    return first
