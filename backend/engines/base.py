"""What every quantization engine is asked and answers. Knows no library and no algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

UNGROUPED = frozenset({"w8a8", "smoothquant", "int8", "fp8"})
"""Methods with one scale an output channel."""


class QuantizeRequest(BaseModel):
    """One quantization. `group_size`, `symmetric` and `bits` as the plan filled them in; w8a8 leaves `group_size` None."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_dir: Path
    out_dir: Path
    """Must not exist yet, or be empty."""
    method: Literal["w8a8", "awq", "rtn", "gptq", "smoothquant", "int8", "fp8"]
    """rtn, rounding to nearest, is awq without scales: what awq has to beat."""
    bits: int = Field(ge=2, le=8)
    group_size: int | None = Field(None, gt=0)
    symmetric: bool
    calibration_texts: list[str]
    samples: int = Field(64, ge=1)
    """Sequences; fewer are used where the text holds fewer."""
    length: int = Field(512, ge=8)
    """Tokens a sequence."""
    seed: int = 0

    @model_validator(mode="after")
    def _groups_where_the_method_has_them(self) -> QuantizeRequest:
        if (self.method in UNGROUPED) != (self.group_size is None):
            raise ValueError("group_size goes with awq, gptq and rtn, and they need it")
        return self


class QuantizeResult(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: list[dict[str, Any]]
    """`name`, `relative_error` (of the output under the calibration's Gram matrix, weights only) of each quantized linear;
    awq and rtn add `rtn_relative_error`, the same without scales."""
    kept_16bit: list[dict[str, str]]
    """`name` and `why` of each linear and embedding that was not quantized."""
    calibration: dict[str, Any]
    """`samples`, `length`, `tokens`, `sha256` (of the token ids)."""
    versions: dict[str, str]
    bytes_before: int
    bytes_after: int
    """Sizes of the weight files."""
