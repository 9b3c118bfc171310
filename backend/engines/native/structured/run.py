"""The parts that every structured pruning shares: reading the original, writing a smaller checkpoint, and checking
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backend.domain.errors import WorkError
from backend.domain.jobs.progress import Progress
from backend.domain.needs.structure import Structure
from backend.engines.native import calibration
from backend.engines.native.files import checkpoint
from backend.engines.native.files.resume import WorkFolder, versions
from backend.engines.native.structured import config_fields
from backend.engines.native.structured.request import CutRequest, CutResult
from backend.layered.dequantize import open_plain
from backend.layered.hidden_states import HiddenStates
from backend.layered.layer_passes import LayerPasses
from backend.layered.outline import Outline
from backend.layered.weight_source import WeightSource

if TYPE_CHECKING:
    import torch


class CutRun:
    """One structured pruning: the model's outline, its calibration text, and the folder of parts. Methods give
    `run`."""

    def run(self) -> CutResult:
        """Remove the parts, and write the smaller checkpoint. Raises WorkError for values that are not finite."""
        raise NotImplementedError

    def __init__(self, request: CutRequest, work: WorkFolder, progress: Progress) -> None:
        # 1. The model: tensors by name, and the outline of its layers without weights.
        self.request, self.work, self.progress = request, work, progress
        self.source = open_plain(request.model_dir)
        self.dtype, self.outline = checkpoint.storage_dtype(self.source), Outline(self.source)
        self.text = self.outline.config.get_text_config()
        self.before = structure_of(self.text)
        # 2. The calibration text [samples, length], and the way it runs through a layer.
        texts, samples = request.calibration_texts, request.samples
        self.tokens = calibration.sample_tokens(request.model_dir, texts, samples, request.length, request.seed)
        if len(self.tokens) < samples:
            progress.warn(f"The calibration text gives {len(self.tokens)} sequences, fewer than {samples}.")
        self.passes = LayerPasses(self.outline, self.tokens, request.devices, progress.warn, half=True)
        self.device = request.devices[0]

    def hidden_states(self) -> HiddenStates:
        """Return the embedded calibration text [samples, length, hidden]."""
        shape = (*self.tokens.shape, self.text.hidden_size)
        hidden = HiddenStates(shape, self.work.folder, 0, self.request.spill_bytes)
        self.passes.embed(hidden)
        return hidden

    def stored(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Read tensors by their names in the checkpoint, in the type that the result stores."""
        return {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.source.read(names)
        }

    def write_outside(self) -> None:
        """Write the part that belongs to no layer."""
        checkpoint.write_part(self.work.part(0), self.stored(self.outline.outside_names()), flush=False)

    def finish(self, numbers: Sequence[int], **facts: Any) -> CutResult:
        """Join the parts of `numbers`, those of the original's layers that stay, and write all else.

        Raises WorkError where the result is not the model that its config.json describes.
        """
        # 1. Weights, tokenizer and companions; config.json last: before it the folder is no model.
        self.progress.phase("write", "Writing the smaller checkpoint", weight=0.2)
        source, folder, after = self.request.model_dir, self.request.out_dir, self.request.structure
        size = checkpoint.join(self.work.parts(len(numbers)), folder)
        checkpoint.write_companions(source, folder)
        changed = config_fields.changes(source, self.outline.config, self.before, after, numbers)
        dtype = str(self.dtype).removeprefix("torch.")
        checkpoint.write_config(source, folder, dtype, None, changed)
        # 2. Read it back: every tensor that transformers asks for, in the shape it asks for.
        result = Outline(WeightSource(folder))
        for name, shape in result.stored_shapes():
            if tuple(result.source.tensors[name].shape) != shape:
                raise WorkError(f"{name} of the smaller model is not {shape}, as its config.json says: report this.")
        return CutResult(
            before=self.before,
            after=after,
            linears=tuple(linear_names(result)),
            calibration=calibration.describe(self.tokens),
            versions=versions(),
            bytes_before=self.source.bytes,
            bytes_after=size,
            **facts,
        )


def structure_of(text: Any) -> Structure:
    """Return the sizes of a model by its text config, as transformers completes it."""
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None)
    width = getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None)
    return Structure(
        layers=text.num_hidden_layers,
        intermediate=width or 4 * text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        hidden=text.hidden_size,
        experts=experts,
    )


def linear_names(outline: Outline) -> list[str]:
    """Return the matrices of every layer, as the checkpoint names their modules; experts are left out."""
    names = [name for group in outline.family.groups for name in group.linears if "*" not in name]
    return [outline.stored_name(number, name) for number in range(outline.count) for name in names]
