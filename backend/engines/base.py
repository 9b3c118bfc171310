"""Request and result of every quantization engine. Knows no library and no algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from backend.domain.frozen import Frozen
from backend.domain.needs.job_memory import SPILL_BYTES
from backend.domain.needs.recovery_needs import LENGTH, SAMPLES
from backend.domain.recipe.methods import QuantizeMethod
from backend.domain.recipe.precision import Precision

Pattern = Literal["unstructured", "2:4", "4:8"]


class Pruning(Frozen):
    """Weights set to zero before anything is quantized."""

    method: Literal["magnitude", "wanda", "sparsegpt"]
    sparsity: float = Field(0.5, gt=0, lt=1)
    pattern: Pattern = "unstructured"


class QuantizeRequest(Frozen):
    """One optimization of weights: pruning, quantization, or both in one pass over the layers.

    `group_size`, `symmetric`, `bits` and `tuning` as the plan filled them in; without a method the weights stay 16-bit.
    """

    model_dir: Path
    out_dir: Path
    """Must not exist yet, or be empty."""
    method: QuantizeMethod | None = None
    """`rtn`, rounding to nearest, is awq without scales: what awq has to beat."""
    bits: int = Field(16, ge=1, le=16)
    group_size: int | None = Field(None, gt=0)
    """Weights that share a scale; None where an output channel or the matrix does."""
    symmetric: bool = True
    tuning: dict[str, Any] = Field(default_factory=dict)
    """Options that only some methods take: `act_order`, `clip`..."""
    pruning: Pruning | None = None
    precisions: dict[str, Precision] = Field(default_factory=dict)
    """Precision of groups that differ from the request's own, by the names that `sensitivity.measure` gives them."""
    outside_experts: str | None = None
    """Mixtures of experts: the method of linears outside of the experts, or `16-bit`; None: the request's own."""
    keep_zeros: bool = False
    """The model was pruned before: what is zero stays zero."""
    calibration_texts: list[str]
    samples: int = Field(SAMPLES, ge=1)
    """Sequences; fewer are used where the text holds fewer."""
    length: int = Field(LENGTH, ge=8)
    """Tokens a sequence."""
    seed: int = 0
    devices: tuple[str, ...] = Field(("cpu",), min_length=1)
    """Devices that layers run on, as torch names them (cpu, cuda:0...); several of one kind share the calibration
    sequences."""
    work_dir: Path | None = None
    """Folder of finished layers until the end. A later attempt at the same request continues from it; it is removed
    after success. None: a folder beside `out_dir`, removed in any case."""
    spill_bytes: int = Field(SPILL_BYTES, ge=0)
    """Hidden states of the calibration text above this live in files."""

    @model_validator(mode="after")
    def _asks_for_something(self) -> QuantizeRequest:
        if self.method is None and self.pruning is None:
            raise ValueError("neither a method nor pruning: nothing to do")
        if self.method in {"awq", "rtn"} and self.group_size is None:
            raise ValueError("awq and rtn need a group_size")
        return self


class QuantizeResult(Frozen):
    """The result of an engine, for the manifest."""

    layers: list[dict[str, Any]]
    """`name`, `relative_error` (of the output under the calibration's Gram matrix, weights only) of each quantized
    linear; awq and rtn add `rtn_relative_error`, the same without scales; `precision` is there where the request names
    several."""
    kept_16bit: list[dict[str, str]]
    """`name` and `why` of each linear and embedding that was not quantized."""
    calibration: dict[str, Any]
    """`samples`, `length`, `tokens`, `sha256` (of the token ids)."""
    versions: dict[str, str]
    bytes_before: int
    bytes_after: int
    """Sizes of the weight files."""
