"""Records the largest keys and values over the calibration, from which the scales of an 8-bit KV cache are made.

One static scale a tensor is the form that vLLM documents ("Quantized KV Cache"); finer ones, such as KVQuant's channels
of keys before the rotary embedding (Hooper et al. 2024, arXiv 2401.18079), it does not serve. The recorder replaces the
model's cache, so that keys are seen as they would be cached: after the rotary embedding. Knows no family.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import WorkError

if TYPE_CHECKING:
    import torch

FP8_MAX = 448.0
"""The largest number of E4M3: Micikevicius et al. 2022 (arXiv 2209.05433), table 1."""


class Extent(NamedTuple):
    """The largest absolute key (after rotary embedding, as vLLM caches it) and value of one layer."""

    key: float
    value: float

    def scales(self) -> dict[str, torch.Tensor]:
        """`k_scale` and `v_scale` [1] fp32, static, one a tensor: stored value = value / scale in E4M3."""
        import torch

        most = {"k_scale": self.key, "v_scale": self.value}
        return {name: torch.tensor([value / FP8_MAX if value > 0 else 1.0]) for name, value in most.items()}


def make_recorder() -> Any:
    """Make a transformers cache that stores nothing. `extents[layer]` grows while `recording`; threads may share it.

    Its update raises WorkError if a key or value is not finite, which the largest one would not show.
    """
    from transformers import DynamicCache

    class Recorder(DynamicCache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.extents: dict[int, Extent] = {}
            self.recording = False
            self._lock = threading.Lock()

        def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> Any:
            # Take the largest of this batch and of all before it.
            if self.recording:
                extent = Extent(float(keys.abs().max()), float(values.abs().max()))
                if not all(map(math.isfinite, extent)):
                    raise WorkError(
                        f"The keys or values of layer {layer} are not finite on the calibration text: check the "
                        "model's weights."
                    )
                with self._lock:
                    before = self.extents.get(layer, Extent(0.0, 0.0))
                    self.extents[layer] = Extent(max(before.key, extent.key), max(before.value, extent.value))
            return keys, values

    return Recorder()
