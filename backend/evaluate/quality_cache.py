"""Lets a reference model keep its keys and values in FP8, by the scales of its checkpoint, so that their rounding is scored.

As vLLM caches them: keys after the rotary embedding, one static scale a layer for keys and one for values. Knows no scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NAMES = ("k_scale", "v_scale")
FP8_MAX = 448.0

Scales = dict[str, dict[str, "torch.Tensor"]]
"""By the name of an attention module: `k_scale` and `v_scale`."""


def taken(state: dict[str, torch.Tensor]) -> Scales:
    """The cache's scales, which are taken out of the tensors of a checkpoint."""
    found: Scales = {}
    for name in [name for name in state if name.rpartition(".")[2] in NAMES]:
        module, _, local = name.rpartition(".")
        found.setdefault(module, {})[local] = state.pop(name).float()
    return found


def round_cache(model: Any, scales: Scales) -> None:
    """From now on the attention modules named in `scales` compute with keys and values as an FP8 cache returns them."""
    for name, module in model.named_modules():
        if name in scales:
            module.register_forward_pre_hook(_hook(_Rounding(scales[name])), with_kwargs=True)


def _hook(cache: _Rounding) -> Any:
    return lambda _module, args, kwargs: (args, {**kwargs, "past_key_values": cache})


class _Rounding:
    """What attention calls a cache: it keeps nothing and returns what came, rounded to E4M3."""

    def __init__(self, scales: dict[str, torch.Tensor]) -> None:
        self.key, self.value = scales["k_scale"], scales["v_scale"]

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return _rounded(keys, self.key), _rounded(values, self.value)


def _rounded(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    import torch

    return (values / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(values.dtype) * scale
