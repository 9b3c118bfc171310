"""Layers that are alike are compiled once: torch's hierarchical compilation (`torch.compiler.nested_compile_region`) in
vLLM.

vLLM 0.32 compiles a model on a processor as one graph, layer after layer, in Python on one core: a minute for 30 small
layers that differ in nothing but their weights. Marked as a region, a layer is compiled the first time it is met and
its code is used again for all others. Two checks of torch 2.13 stand in the way and are told what they do not know: an
argument that may be written and is absent, such as the scale of a block of vLLM's attention, writes nothing; and the
name of a layer, an object that is no tensor, differs from call to call as a tensor's storage does.

Only kinds of layers and of weights that were tried are marked (decision 0040): vLLM's 4-bit kernels, for one, say that
they write to their weights, which a region refuses. Runs under the serve environment's interpreter; imports nothing of
Whetstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALIKE = ("LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Layers of vLLM's models whose `forward` takes positions, hidden states and the residual; the first layer gets no
residual."""
PRODUCTS = ("UnquantizedLinearMethod", "CompressedTensorsW8A8Int8")
"""The ways in which a layer may multiply by its weights."""
MOST = 1024
"""Layers of one kind, beyond which torch gives up: more than any model has."""


def install() -> None:
    """In the process that compiles; may be called more than once."""
    from torch._higher_order_ops import utils as orders
    from torch._inductor import fx_utils
    from vllm.model_executor.models import utils as parts

    if hasattr(parts.make_layers, "once"):
        return
    inner: Any = orders
    inner._get_example_value = present(inner._get_example_value)
    fakes: Any = fx_utils
    fakes._is_fake_tensor_same = of_one_kind(fakes._is_fake_tensor_same)
    parts.make_layers = once(parts.make_layers)


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make_layers` of vLLM's models, answering (start, end, layers), which are compiled once where they are alike.
    Each layer says so for itself: a model and its draft may be of one class and of different weights."""

    def make_layers(*arguments: Any, **options: Any) -> Any:
        result = make(*arguments, **options)
        layers = [layer for layer in result[2] if type(layer).__name__ in ALIKE]
        alike = bool(layers) and all(map(is_plain, layers))
        for layer in layers:
            layer.alike, kind = alike, type(layer)
            kind.forward = kind.forward if hasattr(kind.forward, "region") else region(kind.forward)
        return result

    make_layers.once = True  # type: ignore[attr-defined]
    return make_layers


def is_plain(layer: Any) -> bool:
    """Tell whether all its products are of PRODUCTS, and its keys and values are stored unconverted."""
    for part in layer.modules():
        if any(base.__name__ == "LinearBase" for base in type(part).__mro__):
            method = part.quant_method
            how = part.scheme if type(method).__name__ == "CompressedTensorsLinearMethod" else method
            if type(how).__name__ not in PRODUCTS:
                return False
        if getattr(part, "kv_cache_dtype", "auto") != "auto":
            return False
    return True


def region(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's `forward` as a part that is compiled once where it is `alike`; the first's, without a residual, as it
    is."""
    import torch

    marked = torch.compiler.nested_compile_region(plain, max_reuse_entries=MOST)

    def forward(layer: Any, positions: Any, hidden_states: Any, residual: Any) -> Any:
        compiled = marked if layer.alike and residual is not None else plain
        return compiled(layer, positions, hidden_states, residual)

    forward.region = True  # type: ignore[attr-defined]
    return forward


def present(known: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """torch's look at an argument's example; an absent one is a tensor of nothing."""
    import torch

    def _get_example_value(node: Any) -> Any:
        return torch.empty(0) if node is None else known(node)

    return _get_example_value


def of_one_kind(same: Callable[..., bool]) -> Callable[..., bool]:
    """torch's comparison of what two calls of a region are given; objects that are no tensors are alike where their
    types are."""
    import torch

    def _is_fake_tensor_same(new: Any, old: Any, *arguments: Any, check_storage: bool = True, **options: Any) -> bool:
        if not check_storage and type(new) is type(old) and torch._library.opaque_object.is_opaque_value(new):
            return True
        return same(new, old, *arguments, check_storage=check_storage, **options)

    return _is_fake_tensor_same
