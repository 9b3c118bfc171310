"""The native quantization engine: w8a8, awq and rtn for families in `families`, whole model in memory, fp32 arithmetic.

Deterministic: the same request gives the same bytes. Knows nothing of jobs, recipes or serving.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack, WorkError
from backend.domain.progress import Progress
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.engines.native import calibration, checkpoint
from backend.engines.native.calibration import Gram
from backend.engines.native.families import Family, Group, family_of
from backend.engines.native.rounding import Rounding, compress, quantization_config, rounding_for
from backend.engines.native.scales import Linear, LinearProducer, NormProducer, Producer, search, squared_error

if TYPE_CHECKING:
    import torch

VERSIONS = ("torch", "transformers", "compressed-tensors", "safetensors")
REPORT_SAMPLES = 16
MULTIPLE = 32
"""vLLM's CPU kernels take features in multiples of this; other linears stay 16-bit."""


def quantize(request: QuantizeRequest, progress: Progress) -> QuantizeResult:
    """Quantize the model of `request` into `out_dir`. Phases: load, calibrate, quantize (unit: decoder layer), write.

    Before anything is written raises ImpossibleStack (unknown family, already quantized, group size that divides no input),
    InvalidWorkload (text too short), RequestError (`out_dir` not empty); later WorkError (weights or activations that are not
    finite, the tensor named) and DiskFull.
    """
    config = json.loads((request.model_dir / "config.json").read_bytes())
    family = family_of(str(config.get("model_type")))
    if config.get("quantization_config"):
        raise ImpossibleStack("The model is already quantized: start from its 16-bit original.")
    tokens = calibration.sample_tokens(
        request.model_dir, request.calibration_texts, _samples(request), request.length, request.seed
    )
    checkpoint.fresh(request.out_dir)
    progress.phase("load", "Loading the model", weight=0.05)
    return _Run(request, family, _load(request), progress).run(tokens)


def _samples(request: QuantizeRequest) -> int:
    """w8a8 takes nothing from calibration but the reported errors: fewer sequences do."""
    return min(request.samples, REPORT_SAMPLES) if request.method == "w8a8" else request.samples


def _load(request: QuantizeRequest) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        request.model_dir, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
    )
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise WorkError(f"{name} holds values that are not finite: the model's weights are damaged.")
    return model.eval()


class _Run:
    """One quantization under way: the model (never changed) and the tensors that will replace the stored ones."""

    def __init__(self, request: QuantizeRequest, family: Family, model: Any, progress: Progress) -> None:
        self.request, self.family, self.model, self.progress = request, family, model, progress
        self.dtype = _storage_dtype(request)
        self.rounding: Rounding = rounding_for(request, self.dtype)
        self.replaced: dict[str, dict[str, torch.Tensor]] = {}
        self.layers: list[dict[str, Any]] = []
        self.kept = _kept_modules(model)

    def run(self, tokens: torch.Tensor) -> QuantizeResult:
        count = len(self.model.get_submodule(self.family.layers))
        layers = [self._groups(number) for number in range(count)]
        grams = self._calibrate([group for groups in layers for group in groups], tokens)
        self.progress.phase("quantize", "Quantizing", total=count, unit="layers", weight=0.4)
        for number, groups in enumerate(layers, start=1):
            self._quantize_layer(groups, grams)
            self.progress.advance(number)
        return self._write(calibration.describe(tokens))

    def _groups(self, number: int) -> list[Group]:
        """The layer's groups under full names; those that serving kernels cannot take are noted as kept."""
        prefix = f"{self.family.layers}.{number}."
        full = [Group(tuple(prefix + name for name in g.linears), prefix + g.producer) for g in self.family.groups]
        return [group for group in full if self._fits(group)]

    def _fits(self, group: Group) -> bool:
        modules = [self.model.get_submodule(name) for name in group.linears]
        shapes = [tuple(module.weight.shape) for module in modules]
        size = self.request.group_size
        if all(width % MULTIPLE == 0 for shape in shapes for width in shape):
            if size and shapes[0][1] % size:
                raise ImpossibleStack(
                    f"Group size {size} does not divide the input size {shapes[0][1]} of {group.linears[0]}: "
                    "choose one that does, such as 32."
                )
            return True
        why = f"a size of {shapes} is not a multiple of {MULTIPLE}, which vLLM's kernels need of all linears of a fused group"
        self.kept += [{"name": name, "why": why} for name in group.linears]
        return False

    def _calibrate(self, groups: list[Group], tokens: torch.Tensor) -> dict[str, Gram]:
        self.progress.phase("calibrate", "Running the calibration text", total=len(tokens), unit="sequences", weight=0.5)
        if len(tokens) < (wanted := _samples(self.request)):
            self.progress.warn(f"The calibration text gives {len(tokens)} sequences, fewer than {wanted}.")
        inputs = {group.linears[0]: group.linears[0] for group in groups}
        return calibration.collect(self.model, inputs, tokens, self.progress)

    def _quantize_layer(self, groups: list[Group], grams: dict[str, Gram]) -> None:
        """Groups fed by a linear come first, so that their scales are in that linear's rows when its own group is searched."""
        linears = {name: self._linear(name) for group in groups for name in group.linears}
        for group in reversed(groups):
            self._scale_group(group, linears, grams[group.linears[0]])
        for group in groups:
            for name in group.linears:
                self._store(linears[name], grams[group.linears[0]])

    def _linear(self, name: str) -> Linear:
        import torch

        weight = self.model.get_submodule(name).weight.detach()
        return Linear(name, weight, torch.ones(weight.shape[0]), torch.ones(weight.shape[1]))

    def _scale_group(self, group: Group, linears: dict[str, Linear], gram: Gram) -> None:
        producer = self._producer(group, linears) if self.request.method == "awq" else None
        if producer is None:
            return
        members = [linears[name] for name in group.linears]
        columns = search(members, gram, producer, self.rounding)
        for member in members:
            member.columns = columns
        if isinstance(producer, NormProducer):
            self.replaced[group.producer] = {"weight": producer.fold(columns)}
        else:
            linears[group.producer].rows = producer.rows(columns)

    def _producer(self, group: Group, linears: dict[str, Linear]) -> Producer | None:
        """What scales can be folded into; None where they cannot: a producer that stays 16-bit, or heads that do not divide."""
        weight = self.model.get_submodule(group.producer).weight.detach()
        if weight.ndim == 1:
            return NormProducer(weight, self.dtype)
        in_features = linears[group.linears[0]].weight.shape[1]
        if group.producer not in linears or in_features % weight.shape[0]:
            return None
        config = self.model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return LinearProducer(weight.shape[0], in_features, head_dim)

    def _store(self, linear: Linear, gram: Gram) -> None:
        self.replaced[linear.name] = compress(linear.stored(linear.columns), self.rounding)
        bias = self.model.get_submodule(linear.name).bias
        if bias is not None:
            self.replaced[linear.name]["bias"] = (bias.detach() / linear.rows).to(self.dtype)
        self.layers.append(self._report(linear, gram))

    def _report(self, linear: Linear, gram: Gram) -> dict[str, Any]:
        import torch

        whole = max(squared_error(linear.weight, gram), 1e-30)
        loss = squared_error(linear.error(linear.columns, self.rounding), gram)
        report = {"name": linear.name, "relative_error": (max(loss, 0.0) / whole) ** 0.5}
        if self.request.method != "w8a8":
            plain = Linear(linear.name, linear.weight, torch.ones_like(linear.rows), torch.ones_like(linear.columns))
            rtn = squared_error(plain.error(plain.columns, self.rounding), gram)
            report["rtn_relative_error"] = (max(rtn, 0.0) / whole) ** 0.5
        return report

    def _write(self, described: dict[str, Any]) -> QuantizeResult:
        self.progress.phase("write", "Writing the checkpoint", weight=0.05)
        source, folder = self.request.model_dir, self.request.out_dir
        after = checkpoint.write_weights(folder, dict(self._tensors()))
        checkpoint.write_companions(source, folder)
        ignored = [entry["name"] for entry in self.kept if entry["name"] != "embedding"]
        dtype = str(self.dtype).removeprefix("torch.")
        checkpoint.write_config(source, folder, dtype, quantization_config(self.rounding, ignored))
        return QuantizeResult(
            layers=self.layers,
            kept_16bit=self.kept,
            calibration=described,
            versions={name: version(name) for name in VERSIONS},
            bytes_before=sum(path.stat().st_size for path in checkpoint.weight_files(source)),
            bytes_after=after,
        )

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the new checkpoint: the stored one, or what replaces its module."""
        for name, tensor in checkpoint.read_tensors(self.request.model_dir):
            module, _, local = name.rpartition(".")
            if module not in self.replaced:
                yield name, tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            elif local == "weight":
                yield from ((f"{module}.{key}", value) for key, value in self.replaced[module].items())


def _storage_dtype(request: QuantizeRequest) -> torch.dtype:
    """The original's dtype where it is a 16-bit one, else bfloat16."""
    import torch

    return torch.float16 if checkpoint.dtypes(request.model_dir) == {"F16"} else torch.bfloat16


def _kept_modules(model: Any) -> list[dict[str, str]]:
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    why = "shared with the embedding" if tied else "the output head decides every token and stays 16-bit"
    return [{"name": "lm_head", "why": why}, {"name": "embedding", "why": "a table look-up, not a matrix product"}]
