"""A model without its weights: transformers' modules on the meta device, of which one decoder layer at a time gets
storage.

Also runs everything that stands before the first layer, once, and keeps what the model hands to each layer (rotary
embeddings, masks); and what stands after the last one, up to the logits. Knows families and files, no quantization.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import ModelDamaged, WorkError
from backend.domain.model.stored_weights import is_harmless
from backend.layered import attention
from backend.layered.experts import split_experts
from backend.layered.families import Family, family_of
from backend.layered.kv_cache_range import make_recorder
from backend.layered.sources import language_part
from backend.layered.weight_source import WeightSource

if TYPE_CHECKING:
    import torch


LM_HEAD = "lm_head."
"""The name of the output head in most checkpoints."""


class Call(NamedTuple):
    """Arguments of a layer beside its hidden states."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Recorded(Exception):
    """The last layer was reached."""


class Outline:
    """`source` gives plain weights, whatever its config.json says of quantization. `config` is transformers'; `count`
    the number of decoder layers; `cache` stands in every layer's call, as transformers' caches do (by itself one that
    keeps nothing).

    Raises ImpossibleStack for a family without a row, ModelDamaged for a checkpoint that lacks a tensor of a layer.
    """

    def __init__(self, source: WeightSource, cache: Any = None) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

        # 1. The config, without what it says of quantization: weights are read as plain ones.
        logging.disable_progress_bar()
        self.source = source
        config = AutoConfig.from_pretrained(source.folder, local_files_only=True, trust_remote_code=False)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        self.multimodal = config.get_text_config() is not config
        has_head = any(name.endswith(f"{LM_HEAD}weight") for name in source.files)
        self.config = language_part.text_config(config, tied=not has_head)
        # 2. The model on the meta device, without weights.
        self.family: Family = family_of(self.config.model_type, self.config)
        with torch.device("meta"):
            self.model: Any = AutoModelForCausalLM.from_config(
                self.config, dtype=torch.float32, trust_remote_code=False
            ).eval()
        self.model.requires_grad_(False)
        attention.install(self.model)
        self.layers = self.model.get_submodule(self.family.layers)
        self.tied = bool(self.config.get_text_config().tie_word_embeddings)
        # 3. Paths of the output head and the embedding.
        self._output, self._table = (
            self._path(self.model.get_output_embeddings()),
            self._path(self.model.get_input_embeddings()),
        )
        self.count = len(self.layers)
        # 4. Split fused experts, and compare every name with the checkpoint.
        for layer in self.layers:
            self._as_stored(layer)
        self._beginning = language_part.find_beginning(self.source.files, self.family.layers)
        self.root = f"{self._beginning}{self.family.layers.rpartition('.')[2]}."
        self._check_outside()
        for number in range(self.count):
            self._check_layer(number)
        self.cache = make_recorder() if cache is None else cache

    def _path(self, name: Any) -> str:
        path: str = next(path for path, module in self.model.named_modules() if module is name)
        return path + "."

    def _check_layer(self, number: int) -> None:
        """Raise ModelDamaged where the checkpoint lacks a tensor of the layer, or holds one that nothing would
        read."""
        names, present = self.stored_names(number), self.layers[number].state_dict().keys()
        missing = present - names.values()
        if missing:
            raise ModelDamaged(
                f"{self.stored_name(number, min(missing))} is missing: download or export the model again."
            )
        self._check_left(name for name, path in names.items() if path not in present)

    def _check_outside(self) -> None:
        """Check in the same way what belongs to no layer, and an output head that is stored although it is tied to the
        embedding."""
        import torch

        # What is computed outside the layers, and the layers that predict further tokens, which nothing here runs.
        state = self.model.state_dict()
        inside = {
            path for path in state if path.startswith(self._base) and not path.startswith(f"{self.family.layers}.")
        }
        used = self._stored_outside(inside | self._head_paths())
        layers = {f"{self.root}{number}" for number in range(self.count)}
        carried = set(self.carried_names())
        left = [
            name
            for name in self.source.plain()
            if name not in used and name not in carried and self._layer_of(name) not in layers
        ]

        # A tied head may be stored beside the embedding, as long as it is the same matrix.
        tied = {name for name in left if self.tied and self._outside(name, {f"{self._output}weight"})}
        table = next((name for name, path in used.items() if path == f"{self._table}weight"), None)
        for name in tied:
            if table is None or not torch.equal(self.source.one(name), self.source.one(table)):
                raise ModelDamaged(
                    f"config.json ties the output head to the embedding (`tie_word_embeddings`), but {name} is "
                    "another matrix: servers take one or the other. Export the model again, or correct config.json."
                )
        self._check_left(name for name in left if name not in tied)

    def _layer_of(self, name: str) -> str:
        """The beginning of a name up to the number of its layer, where it has one."""
        return self.root + name.removeprefix(self.root).partition(".")[0]

    def _check_left(self, names: Iterable[str]) -> None:
        """Raise ModelDamaged for a tensor that nothing would read, unless it is a buffer that every loader computes
        anew."""
        unread = min((name for name in names if not is_harmless(name, self.source.tensors.get(name))), default=None)
        if unread is not None:
            raise ModelDamaged(
                f"{unread} belongs to no part of a model of type {self.config.model_type}, so nothing would read it: "
                "use the original model, or export it again."
            )

    def _as_stored(self, layer: Any) -> None:
        """Linears in place of what transformers fuses (experts) or turns round (Conv1D)."""
        from torch import nn
        from transformers.pytorch_utils import Conv1D

        names = self.family.experts
        if names is not None:
            layer.set_submodule(names.path, split_experts(layer.get_submodule(names.path), names))
        for path, module in list(layer.named_modules()):
            if isinstance(module, Conv1D):
                layer.set_submodule(path, nn.Linear(module.nx, module.nf, device="meta"))

    def stored_names(self, number: int) -> dict[str, str]:
        """Map each name of one layer in the checkpoint to its path inside the layer's module."""
        prefix = f"{self.root}{number}."
        return {name: self._local(name.removeprefix(prefix)) for name in self._names_by_layer.get(str(number), ())}

    @cached_property
    def _names_by_layer(self) -> dict[str, list[str]]:
        """Sorted out once: a mixture has tens of thousands of names, and each layer asks for its own."""
        by_layer: dict[str, list[str]] = {}
        for name in self.source.plain():
            if name.startswith(self.root):
                by_layer.setdefault(name.removeprefix(self.root).partition(".")[0], []).append(name)
        return by_layer

    def _local(self, name: str) -> str:
        for stored, local in self.family.stored:
            name = name.replace(stored, local, 1) if name.startswith(stored) else name
        return name

    def stored_name(self, number: int, local: str) -> str:
        """The checkpoint's name of a module inside layer `number`."""
        for stored, inside in self.family.stored:
            local = local.replace(inside, stored, 1) if local.startswith(inside) else local
        return f"{self.root}{number}.{local}"

    def outside_names(self) -> list[str]:
        """Return every tensor of the language model that belongs to no decoder layer."""
        carried = set(self.carried_names())
        return [name for name in self.source.plain() if not self._is_numbered(name) and name not in carried]

    def carried_names(self) -> list[str]:
        """Return every tensor that is no part of the language model and is carried as it is: of a vision tower, a
        projector, or what predicts further tokens (heads, and layers behind the last one)."""
        return [name for name in self.source.plain() if self._is_carried(name)]

    def _is_carried(self, name: str) -> bool:
        if self._is_numbered(name):
            return int(name.removeprefix(self.root).partition(".")[0]) in self._further_layers
        return language_part.is_head(name) or (self.multimodal and language_part.is_other_part(name))

    def _is_numbered(self, name: str) -> bool:
        return name.startswith(self.root) and name.removeprefix(self.root).partition(".")[0].isdigit()

    @cached_property
    def _further_layers(self) -> range:
        """Return the numbers of layers behind the last one that predict further tokens (DeepSeek-V3, GLM-4.5)."""
        more = getattr(self.config, "num_nextn_predict_layers", None) or 0
        return range(self.count, self.count + more)

    def carried_exceptions(self) -> list[str]:
        """Return patterns for `quantization_config` that except what is carried."""
        beyond = [f"{self.root}{number}." for number in self._further_layers]
        return language_part.exceptions(self.carried_names(), beyond)

    def stored_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield for every tensor that the model reads its name in the checkpoint, and the shape that config.json asks
        for there.

        Raises ModelDamaged where one outside the layers is missing.
        """
        from torch import nn

        # 1. What stands outside the layers.
        state = {path: tuple(tensor.shape) for path, tensor in self.model.state_dict().items()}
        outside = {
            path for path in state if path.startswith(self._base) and not path.startswith(f"{self.family.layers}.")
        }
        for name, path in self._stored_outside(outside | self._head_paths()).items():
            yield name, state[path]

        # 2. The layers; a linear of a transposed family is stored [in, out].
        for number, layer in enumerate(self.layers):
            turned = {f"{path}.weight" for path, module in layer.named_modules() if isinstance(module, nn.Linear)}
            prefix = f"{self.family.layers}.{number}."
            for name, path in self.stored_names(number).items():
                shape = state.get(prefix + path)
                if shape is None:
                    continue
                yield name, shape[::-1] if self.family.transposed and path in turned else shape

    def fill(self, number: int, device: str) -> Any:
        """Return the layer's module with its weights in fp32 on `device`; `drop` frees it.

        Raises WorkError for values that are not finite, ModelDamaged for tensors that are misshapen.
        """
        layer = self.layers[number]
        paths = {name: path for name, path in self.stored_names(number).items() if path in layer.state_dict()}
        self._buffers(layer, device)
        self._load(layer, paths, device, turn=self.family.transposed)
        return layer

    def drop(self, number: int) -> None:
        """Free the weights of a filled layer."""
        self.layers[number].to_empty(device="meta")

    def replica(self, number: int, device: str) -> Any:
        """Copy a filled layer to another device."""
        return copy.deepcopy(self.layers[number]).to(device)

    def _load(self, module: Any, paths: dict[str, str], device: str, *, turn: bool = False) -> None:
        """Read tensors into the module: `paths` from their names in the checkpoint. `turn` linears that are [in, out].

        Raises WorkError for values that are not finite, ModelDamaged for tensors that are misshapen.
        """
        import torch

        # 1. Read each tensor and check it.
        shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
        linears = {f"{path}.weight" for path, inner in module.named_modules() if isinstance(inner, torch.nn.Linear)}
        state = {}
        for name, tensor in self.source.read(paths):
            path = paths[name]
            loaded = tensor.to(device).float()  # 16 bits a weight on the way to the device
            if not bool(loaded.sum().isfinite()) and not bool(loaded.isfinite().all()):  # a sum is a tenth of the work
                raise WorkError(f"{name} holds values that are not finite: the model's weights are damaged.")
            turned = turn and path in linears
            state[path] = loaded.T.contiguous() if turned else loaded
            if state[path].shape != shapes[path]:
                raise ModelDamaged(
                    f"{name} has not the shape that config.json asks for: download or export the model again."
                )

        # 2. Assign them all, which copies nothing.
        module.load_state_dict(state, strict=False, assign=True)
        module.requires_grad_(False)

    def _buffers(self, module: Any, device: str) -> None:
        """Compute what is never stored (rotary frequencies), as transformers does when it loads a model."""
        import torch

        for inner in module.modules():
            unstored = [name for name in inner._non_persistent_buffers_set if getattr(inner, name).is_meta]
            for name in unstored:
                setattr(inner, name, torch.empty_like(getattr(inner, name), device=device))
            if unstored:
                self.model._init_weights(inner)  # parameters are without storage yet: only buffers get values

    def embed(self, batches: Iterable[torch.Tensor], device: str) -> Iterator[tuple[torch.Tensor, list[Call]]]:
        """Return what enters the first layer [sequences, length, hidden] for each batch of token ids, and every layer's
        call.

        The weights outside the layers are loaded for as long as this runs.
        """
        import torch

        # 1. Load what stands before the layers.
        base = self.model.base_model
        inside = {path for path in self.model.state_dict() if path.startswith(self._base)}
        paths = self._stored_outside({path for path in inside if not path.startswith(f"{self.family.layers}.")})
        self._buffers(base, device)
        self._load(self.model, paths, device)

        # 2. Run the model on each batch up to its last layer; every layer only records its call.
        try:
            for batch in batches:
                with torch.no_grad(), _recording(self.layers) as recorded, suppress(_Recorded):
                    base(batch.to(device), past_key_values=self.cache, use_cache=True)
                yield recorded[0][0], [call for _, call in recorded]
        finally:
            for child in base.children():
                if child is not self.layers:
                    child.to_empty(device="meta")

    @property
    def _base(self) -> str:
        """Return what the paths of everything but the output head begin with."""
        return self.family.layers.partition(".")[0] + "."

    def _stored_outside(self, paths: set[str]) -> dict[str, str]:
        """Map tensors outside the layers from their names in the checkpoint to their paths. Raises ModelDamaged where
        one is missing."""
        stored: dict[str, str] = {}
        for name in self.outside_names():
            path = self._outside(name, paths)
            if path is not None:
                stored[name] = path
        missing = paths - set(stored.values())
        if missing:
            raise ModelDamaged(f"{min(missing)} is missing: download or export the model again.")
        return stored

    def _outside(self, name: str, paths: set[str]) -> str | None:
        """Return which of `paths` a name in the checkpoint stands for, or None.

        Checkpoints may leave out the name of the base model, and call the head otherwise.
        """
        candidates = [name, self._base + name]
        if self._beginning and name.startswith(self._beginning):
            candidates.append(self._base + name.removeprefix(self._beginning))
        for head in (f"{self.family.head}.", f"language_model.{LM_HEAD}"):
            if name.startswith(head):
                candidates.append(self._output + name.removeprefix(head))
        return next((path for path in candidates if path in paths), None)

    def shares_head(self, other: Outline) -> bool:
        """Return whether all that stands after the last layer is the same in the other checkpoint, bit by bit."""
        import torch

        mine, its = (
            {path: name for name, path in outline._stored_outside(outline._head_paths()).items()}
            for outline in (self, other)
        )
        if mine.keys() != its.keys():
            return False
        pairs = ((self.source.one(mine[path]), other.source.one(its[path])) for path in mine)
        return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)

    def _head_paths(self) -> set[str]:
        """The last norm, and the output head or, where it is tied, the embedding."""
        begins = (self.family.norm + ".", self._table if self.tied else self._output)
        return {path for path in self.model.state_dict() if path.startswith(begins) or path == f"{self._output}bias"}

    @contextmanager
    def head(self, device: str, *, gradients: bool = False) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
        """Yield a function from what left the last layer [rows, hidden], on any device, to logits [rows, vocabulary].

        It is the last norm and the output head, with what the family does to logits (scales, soft caps), by the model's
        own forward. Their weights are loaded for as long as this runs. With `gradients` they reach the rows.
        """
        import torch
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions, MoeModelOutputWithPast

        # 1. Load the last norm and the output head.
        left = MoeModelOutputWithPast if self.family.experts else BaseModelOutputWithPastAndCrossAttentions
        stored = self._stored_outside(self._head_paths())
        self._load(self.model, stored, device)
        output, table = self.model.get_output_embeddings(), self.model.get_input_embeddings()
        if self.tied:
            output.weight = table.weight

        # 2. Run the model with only the norm in place of its layers.
        base, norm = self.model.base_model, self.model.get_submodule(self.family.norm)

        def logits(rows: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(gradients):
                logits: torch.Tensor = self.model(inputs_embeds=rows[None].to(device), use_cache=False).logits[0]
            return logits

        base.forward = lambda *_, inputs_embeds, **__: left(last_hidden_state=norm(inputs_embeds))
        try:
            yield logits
        finally:
            del base.forward
            for module in (output, table, norm):
                module.to_empty(device="meta")


@contextmanager
def _recording(layers: Any) -> Iterator[list[tuple[torch.Tensor, Call]]]:
    """Let each layer only record its call and pass its input on, while the context lasts; the last one ends the run."""
    recorded: list[tuple[Any, Call]] = []

    # 1. Stand in for every layer.
    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs.pop("hidden_states")
        recorded.append((hidden, Call(args[1:], kwargs)))
        if len(recorded) == len(layers):
            raise _Recorded
        return hidden, None

    for layer in layers:
        layer.forward = forward

    # 2. Run, and give every layer its own forward back.
    try:
        yield recorded
    finally:
        for layer in layers:
            del layer.forward


def moved(value: Any, device: str) -> Any:
    """Every tensor inside tuples, lists and dicts on `device`."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, Call):
        return Call(moved(value.args, device), moved(value.kwargs, device))
    if isinstance(value, list | tuple):
        return type(value)(moved(item, device) for item in value)
    return value
