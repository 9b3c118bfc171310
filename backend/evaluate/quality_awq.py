"""Reads a checkpoint in AutoAWQ's GEMM format as an ordinary model, for scoring what was saved: transformers 5 does not.

Layout (AutoAWQ 0.2.9, utils/packing_utils.py): `qweight` int32 [in, out / 8], `qzeros` int32 [groups, out / 8] hold eight
unsigned 4-bit numbers each, the outputs in the order 0 2 4 6 1 3 5 7 from the lowest bits up; `scales` [groups, out]. A weight
is (number - zero) x scale. Knows nothing of scores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ModelDamaged

if TYPE_CHECKING:
    import torch

METHOD = "awq"
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which four bits, counted from the lowest, each output of eight lies."""


def is_gemm(folder: Path) -> bool:
    """Whether config.json says so."""
    config = json.loads((folder / "config.json").read_bytes()).get("quantization_config") or {}
    return config.get("quant_method") == METHOD and str(config.get("version", "")).lower() == "gemm"


def load(folder: Path) -> Any:
    """The model in fp32 with its linears dequantized. Raises ModelDamaged where tensors are missing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(_weights(folder), strict=False)
    if config.tie_word_embeddings:
        missing = [name for name in missing if not name.startswith("lm_head")]
        model.tie_weights()
    if missing or unexpected:
        raise ModelDamaged(f"The checkpoint in {folder} lacks {(missing or unexpected)[0]}: make it again.")
    return model


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    stored = {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    plain = {name: tensor.float() for name, tensor in stored.items() if tensor.is_floating_point() and ".scales" not in name}
    for name in stored:
        if name.endswith(".qweight"):
            linear = name.removesuffix(".qweight")
            plain[f"{linear}.weight"] = dequantized(*(stored[f"{linear}.{part}"] for part in ("qweight", "qzeros", "scales")))
    return plain


def dequantized(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight [out, in] fp32."""
    numbers, zeros = _unpacked(qweight), _unpacked(qzeros)
    size = len(numbers) // len(zeros)
    return ((numbers - zeros.repeat_interleave(size, 0)).float() * scales.float().repeat_interleave(size, 0)).T.contiguous()


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    """int32 [rows, out / 8] as numbers [rows, out]."""
    import torch

    shifts = torch.tensor(ORDER, dtype=torch.int32) * 4
    return (torch.bitwise_right_shift(packed[..., None], shifts) & 15).flatten(1)
