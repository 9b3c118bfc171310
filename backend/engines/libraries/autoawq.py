"""Quantizes with AutoAWQ, the library that made AWQ popular, which its author deprecated and people still ask for.

Writes its own format (`quant_method: awq`, GEMM), 4 bits with zero points. Its own defaults are kept, clip search
included. Knows nothing of jobs and recipes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack
from backend.domain.jobs.progress import Progress
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.engines.libraries import library_steps
from backend.layered import tokenizers

if TYPE_CHECKING:
    import torch


def quantize(request: QuantizeRequest, progress: Progress) -> QuantizeResult:
    """Quantize the model of `request` into `out_dir`. Phases: load, quantize (unit: decoder layer), write.

    Raises ImpossibleStack, InvalidWorkload or RequestError before anything is written; later WorkError and DiskFull.
    """
    if request.method != "awq" or request.pruning or request.bits != 4 or request.symmetric:
        raise ImpossibleStack(
            "AutoAWQ writes 4-bit AWQ with zero points only: use `method: awq`, or engine: llm-compressor."
        )
    # 1. Check the request, and load the model.
    tokens = library_steps.begin(request, progress)
    wrapped, tokenizer = _load(request)
    before = library_steps.LayerErrors(wrapped.model, tokens)

    # 2. Quantize, and compare each layer with itself before.
    progress.phase("quantize", "Quantizing with AutoAWQ", total=len(before.calls), unit="layers", weight=3.6)
    _quantize(wrapped, tokenizer, request, tokens, progress)
    layers = before.rows(wrapped.model)

    # 3. Write.
    progress.phase("write", "Writing the checkpoint", weight=0.2)
    wrapped.save_quantized(str(request.out_dir))
    return library_steps.finish(request, tokens, layers, ["lm_head", "embedding"], ("autoawq",))


def _load(request: QuantizeRequest) -> tuple[Any, Any]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its author's farewell, which the builder tells in words
        from awq import AutoAWQForCausalLM
    try:
        wrapped = AutoAWQForCausalLM.from_pretrained(
            str(request.model_dir), torch_dtype=torch.float16, device_map="cpu", trust_remote_code=False
        )
    except TypeError as error:
        raise ImpossibleStack(
            f"AutoAWQ does not know this family ({error}): use the native engine or llm-compressor."
        ) from None
    library_steps.check_finite(wrapped.model)
    return wrapped, tokenizers.load(request.model_dir)


def _quantize(wrapped: Any, tokenizer: Any, request: QuantizeRequest, tokens: torch.Tensor, progress: Progress) -> None:
    """Run the library on the wrapped model, and report each layer."""
    from awq.quantize.quantizer import AwqQuantizer

    class Watched(AwqQuantizer):  # type: ignore[misc]
        """Reports a layer as done when the next one begins."""

        done = 0

        def _get_input_feat(self, layer: Any, named_linears: Any) -> Any:
            progress.advance(Watched.done)
            Watched.done += 1
            return super()._get_input_feat(layer, named_linears)

    # The library's own defaults but for the request's bits and group size, on the same tokens as every engine.
    settings = {"zero_point": True, "q_group_size": request.group_size, "w_bit": request.bits, "version": "GEMM"}
    wrapped.quantize(
        tokenizer,
        quant_config=settings,
        calib_data=tokens.tolist(),
        max_calib_samples=len(tokens),
        max_calib_seq_len=tokens.shape[1],
        quantizer_cls=Watched,
    )
    progress.advance(Watched.done)
