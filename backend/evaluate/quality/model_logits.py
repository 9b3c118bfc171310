"""Takes windows of text through one model and returns its logits, with one decoder layer in memory at a time.

A family whose layers have no outline (layered/families.py) is loaded whole instead. Knows nothing of scores or of the
model that it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from backend.domain.errors import ImpossibleStack, InvalidModel, ModelDamaged
from backend.domain.model.announced_quantization import CONFIG
from backend.domain.needs.job_memory import SPILL_BYTES
from backend.evaluate.quality import int8_linears, quantized_reference
from backend.layered import dequantize
from backend.layered.hidden_states import HiddenStates
from backend.layered.layer_passes import LayerPasses, out_of_memory
from backend.layered.outline import Outline
from backend.layered.weight_source import PackedSource, WeightSource

if TYPE_CHECKING:
    import torch

Head = Callable[["torch.Tensor", int, slice], "torch.Tensor"]
"""Turns the result of `run`, the number of a window and some of its positions into logits [rows, vocabulary]."""


class ScoringPlace(NamedTuple):
    """The devices and folders that scoring uses; devices are named as in torch.

    Hidden states of more than `spill_bytes` are written to files in `folder` (None: the system's temporary folder).
    Those of an original are stored in `cache` for the next scoring (None: not stored).
    """

    devices: tuple[str, ...] = ("cpu",)
    folder: Path | None = None
    spill_bytes: int = SPILL_BYTES
    cache: Path | None = None


DEFAULT_PLACE = ScoringPlace()


class ScoredModel(Protocol):
    """A model to score.

    `layers` counts the layers and the output head; `vocabulary` is the length of a row of logits; `streams` is False if
    the head computes everything and `run` nothing.
    """

    streams: bool
    layers: int
    vocabulary: int

    def run(self, tokens: torch.Tensor, work: Path, tick: Callable[[float], None]) -> torch.Tensor:
        """Take `tokens` [windows, length] through the layers; return what `head` turns into logits.

        `tick` receives the number of finished layers, with fractions.

        Raises WorkError (values that are not finite, memory), ModelDamaged, DiskFull.
        """

    def head(self) -> AbstractContextManager[Head]:
        """Load the output head until the block ends."""

    def shares_head(self, other: ScoredModel) -> bool:
        """Tell whether the other model has the very same head."""


def open_model(folder: Path, place: ScoringPlace, warn: Callable[[str], None]) -> LayerwiseModel | WholeModel:
    """Open the model in `folder`, layer by layer if its family is known.

    Raises ModelDamaged with its name if it cannot be read; an error about memory is raised unchanged.
    """
    from safetensors import SafetensorError

    try:
        # Read one layer after the other if their places are known; else load the whole model.
        source = _source(folder)
        if source is not None:
            try:
                return LayerwiseModel(source, place, warn)
            except ImpossibleStack:
                warn("The layers of this family are not known here: it is scored with the whole model in memory.")
        return WholeModel(folder)
    # Name the folder in the error.
    except (ModelDamaged, InvalidModel) as error:
        raise _damaged(folder, str(error).rpartition(":")[0] or str(error).rstrip(".")) from None
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        if out_of_memory(error):
            raise
        raise _damaged(folder, str(error).partition("\n")[0]) from None


def _damaged(folder: Path, reason: str) -> ModelDamaged:
    return ModelDamaged(f"The model in {folder} cannot be loaded for scoring ({reason}): make it again.")


def is_quantized(folder: Path) -> bool:
    """Tell whether the weights are stored in any form but plain floats. Raises ModelDamaged, InvalidModel."""
    return dequantize.recognise_layout(WeightSource(folder)) is not None


def _source(folder: Path) -> WeightSource | None:
    """Open the checkpoint under the tensor names of a plain one; None if only transformers reads its format.

    Config.json must name such a format. Raises ModelDamaged for a layout that nothing here reads, InvalidModel for one
    that is announced as another.
    """
    source = WeightSource(folder)
    layout = dequantize.recognise_layout(source)
    if layout is None:
        return dequantize.with_split_experts(source)
    if layout.readable:
        return dequantize.open_packed(folder)
    if layout.announced == CONFIG:
        return None
    raise ModelDamaged(f"{layout.layout}, {layout.refusal}: start from the 16-bit original.")


class LayerwiseModel:
    """A model of which one layer is in memory at a time.

    The hidden states between two layers are in memory, or on disk if they are large.
    """

    streams = True

    def __init__(self, source: WeightSource, place: ScoringPlace, warn: Callable[[str], None]) -> None:
        self.cache = quantized_reference.rounding_cache()
        self.outline = Outline(source, self.cache)
        self.source, self.place, self.warn = source, place, warn
        self.layers = self.outline.count + 1
        self.vocabulary = int(self.outline.config.get_text_config().vocab_size)

    def run(self, tokens: torch.Tensor, work: Path, tick: Callable[[float], None]) -> torch.Tensor:
        """Return the hidden states after the last layer [windows, length, hidden]."""
        # 1. Embed all windows.
        shape = (*tokens.shape, self.outline.config.get_text_config().hidden_size)
        hidden = HiddenStates((shape[0], shape[1], shape[2]), work, spill_bytes=self.place.spill_bytes)
        passes = LayerPasses(self.outline, tokens, self.place.devices, self.warn)
        if self.place.devices[0] == "cpu":
            passes.batch = 1  # a larger batch gains nothing on a processor and needs more memory
        passes.embed(hidden)

        # 2. Load each layer, take all windows through it, and drop it.
        for number in range(self.outline.count):
            self.outline.fill(number, self.place.devices[0])

            def report(share: float, finished: int = number) -> None:
                tick(finished + share)

            with self._as_stored(number):
                passes.run_layer(number, hidden, None, True, report)
            self.outline.drop(number)
            hidden.advance()
        return hidden.entering

    @contextmanager
    def _as_stored(self, number: int) -> Iterator[None]:
        """Make the loaded layer round inputs, keys and values as its checkpoint says, until the block ends."""
        # Weights that are not quantized need no rounding.
        if not isinstance(self.source, dequantize.CompressedTensorsSource):
            yield
            return
        # Round keys and values with the scales of this layer.
        outline = self.outline
        scales = quantized_reference.cache_scales(self.source, outline.stored_name(number, outline.family.attention))
        if scales is not None:
            self.cache.scales[number] = scales
        # Compute in integers what can be; round the inputs of the other linears.
        modules = (
            (outline.stored_name(number, path), module)
            for path, module in outline.layers[number].named_modules()
            if path
        )
        with (
            int8_linears.int8_products(self.source, modules, self.place.devices[0]) as others,
            quantized_reference.round_inputs(self.source, others),
        ):
            yield

    @contextmanager
    def head(self) -> Iterator[Head]:
        with self.outline.head(self.place.devices[0]) as head:
            yield lambda states, number, part: head(states[number, part])

    def shares_head(self, other: ScoredModel) -> bool:
        return other is self or (isinstance(other, LayerwiseModel) and self.outline.shares_head(other.outline))


class WholeModel:
    """A model that transformers loads whole: of a family without an outline, or in a format that nothing else reads."""

    streams = False
    layers = 1

    def __init__(self, folder: Path) -> None:
        """Load the model. Raises ModelDamaged if tensors are missing or unknown, and what `_source` raises."""
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        # Build the model from what the folder holds: quantized, packed or plain.
        logging.disable_progress_bar()
        source = _source(folder)
        if isinstance(source, dequantize.CompressedTensorsSource):
            self.model = quantized_reference.load_quantized(folder)
        elif isinstance(source, PackedSource):
            self.model = quantized_reference.build_plain_model(folder, dict(source.read(source.plain())))
        else:
            self.model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
            quantized_reference.check_loaded(self.model, info)
        # Score it as it is served: without dropout.
        self.model.eval()
        self.vocabulary = int(self.model.config.get_text_config().vocab_size)

    def run(self, tokens: torch.Tensor, work: Path, tick: Callable[[float], None]) -> torch.Tensor:
        return tokens

    @contextmanager
    def head(self) -> Iterator[Head]:
        """Yield a head that computes all positions of a window at the first of them."""
        import torch

        last: dict[int, torch.Tensor] = {}

        def logits(tokens: torch.Tensor, number: int, part: slice) -> torch.Tensor:
            if number not in last:
                last.clear()
                with torch.inference_mode():
                    last[number] = self.model(tokens[number][None], use_cache=False).logits[0]
            return last[number][part]

        yield logits

    def shares_head(self, other: ScoredModel) -> bool:
        return other is self
