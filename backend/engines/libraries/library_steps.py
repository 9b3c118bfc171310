"""Steps that the library engines share: the model checked and loaded, the calibration tokens, errors layer by layer,
the result.

Knows no library but torch and transformers, and no algorithm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack, WorkError
from backend.domain.jobs.progress import Progress
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.engines.native import calibration
from backend.engines.native.files import checkpoint
from backend.engines.native.files.resume import versions
from backend.layered.weight_source import weight_files

if TYPE_CHECKING:
    import torch

PROBED = 512
"""Tokens of the first calibration sequence on which layers are compared."""


def begin(request: QuantizeRequest, progress: Progress) -> torch.Tensor:
    """Check what can be checked without loading; return the calibration tokens [samples, length].

    The same tokens as the native engine takes from the same request. Raises ImpossibleStack, InvalidWorkload,
    RequestError.
    """
    if request.pruning is not None and request.method is not None:
        raise ImpossibleStack(
            "The library engines prune or quantize, not both: use the native engine, or one of the steps."
        )
    checkpoint.check_plain(request.model_dir)
    tokens = calibration.draw_tokens(request, request.samples, progress)
    checkpoint.make_empty_folder(request.out_dir)
    progress.phase("load", "Loading the model", weight=0.2)
    return tokens


def check_finite(model: Any) -> None:
    """Raise WorkError, naming the tensor, where a weight is not a finite number."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise WorkError(f"{name} holds values that are not finite: the model's weights are damaged.")


def decoder_layers(model: Any) -> list[tuple[str, Any]]:
    """Return path and module of each decoder layer: the only list of modules as long as the configuration says.

    Raises WorkError if there is none.
    """
    import torch

    count = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return [(f"{name}.{number}", layer) for number, layer in enumerate(module)]
    raise WorkError("The model has no list of decoder layers that can be told apart: use the native engine.")


class LayerErrors:
    """Compares each decoder layer before and after quantization: ||f'(x) - f(x)|| / ||f(x) - x||, x its own old input.

    Scales that a method moves between the linears of a layer cancel, so this holds for every method; the sum that the
    layer adds to its input is what the error is relative to.
    """

    def __init__(self, model: Any, tokens: torch.Tensor) -> None:
        import torch

        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = []
        hooks = [
            layer.register_forward_hook(self._keep(name), with_kwargs=True) for name, layer in decoder_layers(model)
        ]
        first = tokens[:1, :PROBED].to(next(model.parameters()).device)
        try:
            with torch.inference_mode():
                model.base_model(first, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, name: str) -> Any:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self.calls.append((name, args, kwargs, _first(output)))

        return hook

    def rows(self, model: Any) -> list[dict[str, Any]]:
        """Return the result's `layers`: `name` of the decoder layer and its `relative_error`."""
        import torch

        layers, rows = dict(decoder_layers(model)), []
        for name, args, kwargs, before in self.calls:
            with torch.inference_mode():
                after = _first(layers[name](*args, **kwargs))
            entered = args[0] if args else kwargs["hidden_states"]
            added = float((before.float() - entered.float()).norm())
            rows.append(
                {"name": name, "relative_error": float((after.float() - before.float()).norm()) / max(added, 1e-30)}
            )
        return rows


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def finish(
    request: QuantizeRequest,
    tokens: torch.Tensor,
    layers: list[dict[str, Any]],
    sixteen_bit: list[str],
    libraries: tuple[str, ...],
) -> QuantizeResult:
    """Write tokenizer and generation files beside the weights that the library saved, and return the result."""
    # Complete the folder, then describe it.
    checkpoint.write_companions(request.model_dir, request.out_dir)
    _readable_by_older(request.out_dir / "config.json")
    return QuantizeResult(
        layers=layers,
        kept_16bit=[{"name": name, "why": "the library leaves it out: it decides every token"} for name in sixteen_bit],
        calibration=calibration.describe(tokens),
        versions=versions(*libraries),
        bytes_before=sum(path.stat().st_size for path in weight_files(request.model_dir)),
        bytes_after=sum(path.stat().st_size for path in request.out_dir.glob("*.safetensors")),
    )


def _readable_by_older(path: Path) -> None:
    """Add the names of transformers 4 beside those of transformers 5, which wrote the file."""
    config = json.loads(path.read_bytes())
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
    if "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    checkpoint.write_json(path, config)
