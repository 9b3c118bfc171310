"""Lets a reference model keep its keys and values in FP8, by the scales of its checkpoint, so that their rounding is scored.

As vLLM caches them: keys after the rotary embedding, one static scale a layer for keys and one for values. Knows no scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.layered.cache import FP8_MAX

if TYPE_CHECKING:
    import torch

NAMES = ("k_scale", "v_scale")

Scales = dict[str, "torch.Tensor"]
"""`k_scale` and `v_scale` of one attention module."""


def rounding_cache(*, nearest: bool = True) -> Any:
    """A transformers cache that keeps nothing: for layers in its `scales` it returns what came, rounded to E4M3: to the nearest
    number as GPUs convert, or toward zero, which vLLM 0.32 does on processors."""
    from transformers import DynamicCache

    class Rounding(DynamicCache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scales: dict[int, Scales] = {}

        def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
            scales = self.scales.get(layer)
            return rounded(keys, values, scales, nearest=nearest) if scales else (keys, values)

    return Rounding()


def round_cache(model: Any, scales: dict[str, Scales]) -> None:
    """From now on the attention modules named in `scales` compute with keys and values as an FP8 cache returns them."""
    for name, module in model.named_modules():
        if name in scales:
            module.register_forward_pre_hook(_hook(_Rounding(scales[name])), with_kwargs=True)


def _hook(cache: _Rounding) -> Any:
    return lambda _module, args, kwargs: (args, {**kwargs, "past_key_values": cache})


class _Rounding:
    """What attention calls a cache: it keeps nothing."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return rounded(keys, values, self.scales)


def rounded(
    keys: torch.Tensor, values: torch.Tensor, scales: Scales, *, nearest: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """As an FP8 cache returns them."""
    return _rounded(keys, scales["k_scale"], nearest), _rounded(values, scales["v_scale"], nearest)


def _rounded(values: torch.Tensor, scale: torch.Tensor, nearest: bool) -> torch.Tensor:
    import torch

    scale = scale.to(values.device)
    wanted = (values / scale).clamp(-FP8_MAX, FP8_MAX)
    stored = wanted.to(torch.float8_e4m3fn)
    if not nearest:  # sign and magnitude: one less in the bits is the next number toward zero
        over = stored.float().abs() > wanted.abs()
        stored = (stored.view(torch.uint8) - over.to(torch.uint8)).view(torch.float8_e4m3fn)
    return stored.to(values.dtype) * scale
