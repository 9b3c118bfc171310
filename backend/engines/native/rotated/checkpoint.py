"""Writes a model whose hidden state is rotated: the same answers, from weights that are easier to quantize.

QuaRot (Ashkboos et al. 2024, arXiv 2404.00456, section 4), the part that is folded into weights: one rotation of the
hidden state, and one of each value head. Layer after layer; stored in 16 bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from backend.domain.errors import DiskFull, ImpossibleStack, ModelDamaged
from backend.domain.jobs.progress import Progress
from backend.domain.needs import rotation as rules
from backend.engines.attempt_state import AttemptState
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.engines.native.files import checkpoint
from backend.engines.native.files.resume import WorkFolder, request_key, versions
from backend.engines.native.rotated.hadamard import Rotation
from backend.layered.dequantize import open_plain
from backend.layered.families import Group
from backend.layered.outline import Outline
from backend.layered.weight_source import weight_files

if TYPE_CHECKING:
    import torch

STATE = "rotated.json"
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


class RotatedState(AttemptState):
    """Marks a rotated checkpoint that is whole; `key` identifies what it was made of."""


def quantize_rotated(
    request: QuantizeRequest, progress: Progress, quantize: Callable[[QuantizeRequest, Progress], QuantizeResult]
) -> QuantizeResult:
    """Rotate the model of `request`, then let `quantize` work on that one. Phases: rotate (unit: layers), and those of
    `quantize`. A later attempt goes on from the rotated model. Raises what `make_rotated` and `quantize` raise."""
    folder = find_folder(request)
    tuning = {name: value for name, value in request.tuning.items() if name != "rotate"}
    try:
        make_rotated(request, progress)
        result = quantize(request.model_copy(update={"model_dir": folder, "tuning": tuning}), progress)
    except DiskFull:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except Exception:
        if request.work_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return result.model_copy(update={"bytes_before": open_plain(request.model_dir).bytes})


def find_folder(request: QuantizeRequest) -> Path:
    """Return where the rotated model of a request lies: beside its folder of finished layers."""
    folder = request.work_dir or request.out_dir.with_name(request.out_dir.name + ".work")
    return folder.with_name(folder.name + "-rotated")


def make_rotated(request: QuantizeRequest, progress: Progress) -> None:
    """Write the rotated model of `request` into its folder unless an earlier attempt did.

    Raises ImpossibleStack for a model that cannot be rotated or one that is pruned, ModelDamaged, DiskFull.
    """
    folder = find_folder(request)
    if request.pruning is not None or request.keep_zeros:
        raise ImpossibleStack("A rotation would fill the zeros of a pruning: leave `rotate` or the pruning out.")
    key = request_key({"seed": request.seed, "versions": versions()}, weight_files(request.model_dir))
    if RotatedState.read(folder / STATE, key) is not None and (folder / "config.json").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    with WorkFolder(folder.with_name(folder.name + ".work"), resumable=False) as work:
        _Rotating(request, folder, work, progress).run()
    checkpoint.write_json(folder / STATE, RotatedState(key=key).model_dump(mode="json"))


class _Rotating:
    """One rotation of a model: its outline, the rotations, the folder of parts."""

    def __init__(self, request: QuantizeRequest, folder: Path, work: WorkFolder, progress: Progress) -> None:
        self.folder, self.work, self.progress, self.model_dir = folder, work, progress, request.model_dir
        self.source = open_plain(request.model_dir)
        self.dtype, self.outline = checkpoint.storage_dtype(self.source), Outline(self.source)
        self.text = self.outline.config.get_text_config()
        if self.text.model_type not in rules.FAMILIES or self.outline.multimodal or self.outline.carried_names():
            known = ", ".join(rules.FAMILIES)
            raise ImpossibleStack(
                f"`rotate` is for dense text models of the types {known} without further heads: leave it out."
            )
        head_dim = getattr(self.text, "head_dim", None) or self.text.hidden_size // self.text.num_attention_heads
        self.hidden, self.head = Rotation(self.text.hidden_size, request.seed), Rotation(head_dim, request.seed)
        groups = self.outline.family.groups
        self.readers = {name: str(group.producer) for group in groups if group.layout is None for name in group.linears}
        """Linears that read the hidden state, and the norm before each."""
        self.norms = set(self.readers.values())
        self.writers = {name for group in groups if group.layout is not None for name in group.linears}
        """Linears whose output is added to the hidden state."""
        self.attention = next(group for group in groups if group.producer in self.readers and group.layout is not None)

    def run(self) -> None:
        count = self.outline.count
        self.progress.phase("rotate", "Rotating the weights layer by layer", total=count, unit="layers", weight=0.5)
        checkpoint.make_empty_folder(self.folder)
        # 1. Every part.
        checkpoint.write_part(self.work.part(0), dict(self._outside()), flush=False)
        for number in range(count):
            checkpoint.write_part(self.work.part(number + 1), self._layer(number), flush=False)
            self.progress.advance(number + 1)
        # 2. One checkpoint, whose config.json comes last.
        checkpoint.join(self.work.parts(count), self.folder)
        checkpoint.write_companions(self.model_dir, self.folder)
        dtype = str(self.dtype).removeprefix("torch.")
        checkpoint.write_config(self.model_dir, self.folder, dtype, None, {"tie_word_embeddings": False})

    def _outside(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield embedding, last norm and output head, which is one of its own afterwards."""
        import torch

        stored = dict(self.source.read(self.outline.outside_names()))
        last = {f"{self.outline.family.norm}.weight", f"{self.outline.family.norm}.weight".partition(".")[2]}
        names = {
            kind: next((name for name in stored if matches(name)), None)
            for kind, matches in (
                (EMBEDDING, lambda name: name.endswith(EMBEDDING)),
                ("norm", last.__contains__),
                (HEAD, lambda name: name.endswith(HEAD)),
            )
        }
        table, norm, head = names[EMBEDDING], names["norm"], names[HEAD]
        if table is None or norm is None:
            raise ModelDamaged("The embedding or the last norm has a name that is not known: export the model again.")
        matrix = stored[table] if head is None or self.outline.tied else stored[head]
        yield table, self.hidden.columns(stored[table]).to(self.dtype)
        yield norm, torch.ones_like(stored[norm], dtype=self.dtype)
        yield head or HEAD, self.hidden.columns(matrix.float() * stored[norm].float()).to(self.dtype)

    def _layer(self, number: int) -> dict[str, torch.Tensor]:
        """Return the tensors of a layer by their stored names."""
        import torch

        paths = self.outline.stored_names(number)
        tensors = {paths[name]: tensor.float() for name, tensor in self.source.read(paths)}
        # 1. What reads the hidden state takes the norm's weights and the rotation, what writes it the rotation.
        for path in list(tensors):
            module, _, kind = path.rpartition(".")
            if module in self.readers and kind == "weight":
                scale = tensors[f"{self.readers[module]}.weight"]
                tensors[path] = self.hidden.columns(tensors[path] * scale)
            elif module in self.writers:
                tensors[path] = (
                    self.hidden.rows(tensors[path]) if kind == "weight" else self.hidden.columns(tensors[path])
                )
        # 2. Heads of values, and what reads them.
        self._turn_values(tensors, self.attention)
        # 3. The norms only divide.
        for norm in self.norms:
            tensors[f"{norm}.weight"] = torch.ones_like(tensors[f"{norm}.weight"])
        stored = {path: name for name, path in paths.items()}
        return {
            stored[path]: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            for path, tensor in tensors.items()
        }

    def _turn_values(self, tensors: dict[str, torch.Tensor], group: Group) -> None:
        """Rotate each head of values, and undo it in the matrix that reads the heads."""
        assert group.layout is not None
        size = self.head.size
        firsts = sorted(set(group.layout(self.text).view(-1, size)[:, 0].tolist()))
        for kind in ("weight", "bias"):
            path = f"{group.producer}.{kind}"
            for first in firsts if path in tensors else ():
                block = tensors[path][first : first + size]
                turned = self.head.rows(block) if kind == "weight" else self.head.columns(block)
                tensors[path][first : first + size] = turned
        (output,) = group.linears
        weight = tensors[f"{output}.weight"]
        tensors[f"{output}.weight"] = self.head.columns(weight.view(len(weight), -1, size)).view_as(weight)
