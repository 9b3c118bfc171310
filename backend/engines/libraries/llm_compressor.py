"""Quantizes and prunes with llm-compressor, the vLLM project's library, by one `oneshot` call for each method.

It has AWQ, GPTQ, SmoothQuant, W8A8, INT8, FP8, rounding to nearest, and pruning by Wanda and SparseGPT. Its own
defaults are kept: what a user of the library would get. Knows nothing of jobs and recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack
from backend.domain.jobs.progress import Progress
from backend.engines.base import Pruning, QuantizeRequest, QuantizeResult
from backend.engines.libraries import library_steps
from backend.layered import tokenizers

if TYPE_CHECKING:
    import torch

IGNORED = ["lm_head"]
SCHEMES = {"w8a8": "W8A8", "smoothquant": "W8A8", "int8": "W8A16", "fp8": "FP8_DYNAMIC"}
"""Method -> preset of compressed-tensors; the others quantize in groups of the request's size."""
METHODS = ("awq", "gptq", "rtn", *SCHEMES)
PRUNERS = ("wanda", "sparsegpt")


def quantize(request: QuantizeRequest, progress: Progress) -> QuantizeResult:
    """Quantize the model of `request` into `out_dir`, as compressed-tensors, or prune it, stored dense.

    Phases: load, quantize or prune (unit: decoder layer), write.
    Raises ImpossibleStack, InvalidWorkload or RequestError before anything is written; later WorkError and DiskFull.
    """
    _check(request)
    # 1. Check the request, and load the model.
    tokens = library_steps.begin(request, progress)
    model, tokenizer = _load(request)
    before = library_steps.LayerErrors(model, tokens)

    # 2. Change the weights, and compare each layer with itself before.
    name, doing = ("prune", "Pruning") if request.pruning else ("quantize", "Quantizing")
    progress.phase(name, f"{doing} with llm-compressor", total=len(before.calls), unit="layers", weight=3.6)
    _oneshot(model, tokenizer, request, tokens, progress)
    layers = before.rows(model)
    sixteen_bit = _unquantized(model, request)

    # 3. Write.
    progress.phase("write", "Writing the checkpoint", weight=0.2)
    model.save_pretrained(request.out_dir, save_compressed=True)
    return library_steps.finish(request, tokens, layers, sixteen_bit, ("llmcompressor",))


def _check(request: QuantizeRequest) -> None:
    """Raise ImpossibleStack for what it cannot do, or cannot do here."""
    options, known = (str(request.method), METHODS) if request.pruning is None else (request.pruning.method, PRUNERS)
    if options not in known:
        raise ImpossibleStack(f"llm-compressor has no `{options}` here: it has {', '.join(known)}.")


def _load(request: QuantizeRequest) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        request.model_dir, dtype="auto", local_files_only=True, trust_remote_code=False, use_safetensors=True
    ).eval()
    library_steps.check_finite(model)
    return model, tokenizers.load(request.model_dir)


def _oneshot(model: Any, tokenizer: Any, request: QuantizeRequest, tokens: torch.Tensor, progress: Progress) -> None:
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache

    if not torch.cuda.is_available() and hasattr(IntermediatesCache, "pin_memory"):
        IntermediatesCache.pin_memory = lambda *_args, **_kwargs: None  # it asks for a device that is not there
    rows = tokens.tolist()
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]})
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=data,
        num_calibration_samples=len(rows),
        max_seq_length=tokens.shape[1],
        shuffle_calibration_samples=False,
        recipe=_modifiers(request, _Watch(model, progress)),
    )


def _modifiers(request: QuantizeRequest, watch: _Watch) -> list[Any]:
    if request.pruning is not None:
        return [_pruner(request.pruning, watch)]
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    # 1. What the weights become: a scheme of the library, or groups of integers.
    how: dict[str, Any] = {"ignore": IGNORED}
    if request.method in SCHEMES:
        how |= {"targets": ["Linear"], "scheme": SCHEMES[request.method]}
    else:
        weights = {
            "num_bits": request.bits,
            "type": "int",
            "symmetric": request.symmetric,
            "strategy": "group",
            "group_size": request.group_size,
        }
        how["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights}}
    # 2. How they get there: scales before rounding, GPTQ, or rounding alone.
    scales = {"awq": AWQModifier, "smoothquant": SmoothQuantModifier}.get(str(request.method))
    if scales is not None:
        return [watch.over(scales)(), QuantizationModifier(**how)]
    return [watch.over(GPTQModifier if request.method == "gptq" else QuantizationModifier)(**how)]


def _pruner(pruning: Pruning, watch: _Watch) -> Any:
    """An N:M mask is named by what of M weights is dropped, an unstructured one 0:0."""
    from llmcompressor.modifiers.pruning import SparseGPTModifier, WandaPruningModifier

    modifier = {"wanda": WandaPruningModifier, "sparsegpt": SparseGPTModifier}[pruning.method]
    structure = {"unstructured": "0:0"}.get(pruning.pattern, pruning.pattern)
    return watch.over(modifier)(
        sparsity=pruning.sparsity, mask_structure=structure, ignore=[f"re:.*{name}" for name in IGNORED]
    )


class _Watch:
    """Counts the decoder layers that a modifier has been through: its subclass tells of each, changing nothing."""

    def __init__(self, model: Any, progress: Progress) -> None:
        self._left = [layer for _, layer in library_steps.decoder_layers(model)]
        self._total, self._progress = len(self._left), progress

    def over(self, modifier: type[Any]) -> type[Any]:
        passed = self.passed

        def counting(self: Any, state: Any, event: Any, modules: Any, **kwargs: Any) -> None:
            modifier.on_sequential_epoch_end(self, state, event, modules=modules, **kwargs)
            passed(modules)

        return type(modifier.__name__, (modifier,), {"on_sequential_epoch_end": counting, "__module__": __name__})

    def passed(self, modules: Any) -> None:
        """`modules` are those of the part that is done: each layer, or all at once where no data is needed."""
        done = {id(module) for module in modules}
        self._left = [layer for layer in self._left if not any(id(module) in done for module in layer.modules())]
        self._progress.advance(self._total - len(self._left))


def _unquantized(model: Any, request: QuantizeRequest) -> list[str]:
    """Linears that were left as they were, and the embedding."""
    import torch

    if request.pruning is not None:
        return [*IGNORED, "embedding"]
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return [name for name, module in linears.items() if getattr(module, "quantization_scheme", None) is None] + [
        "embedding"
    ]
