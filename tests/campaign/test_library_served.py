"""What the library engines write is loaded by vLLM, which computes what the dequantized weights compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.instruction_sets import is_avx2_alone
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.libraries import library_client
from backend.hardware import probe
from backend.hardware.engine_status import engine_python
from backend.settings import load
from tests.helpers.vllm_reference import follows, reference, serve
from tests.rounding import apart, overflow
from tests.tiny import TEXT, tiny_llama

pytestmark = [pytest.mark.campaign, pytest.mark.vllm]

FOUR: dict[str, Any] = {"bits": 4, "symmetric": False, "group_size": 32}
EIGHT: dict[str, Any] = {"bits": 8}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "awq": ("llm-compressor", {"method": "awq", **FOUR}),
    "gptq": ("llm-compressor", {"method": "gptq", **FOUR}),
    "autoawq": ("autoawq", {"method": "awq", **FOUR}),
    "wanda": ("llm-compressor", {"pruning": Pruning(method="wanda", pattern="2:4")}),
    "smoothquant": ("llm-compressor", {"method": "smoothquant", **EIGHT}),
    "fp8": ("llm-compressor", {"method": "fp8", **EIGHT}),
}
"""A method of each form of file: rtn writes what gptq writes, w8a8 what smoothquant does, sparsegpt what wanda does.
tests/integration/engines/test_library_engines.py has every method."""


@pytest.mark.timeout(1800)
def test_vllm_computes_what_the_libraries_wrote(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = tiny_llama(tmp_path / "model")
    four_bits_served = not is_avx2_alone(probe.probe()["flags"])
    methods = {name: row for name, row in METHODS.items() if four_bits_served or row[1].get("bits") != 4}
    for name, (engine, options) in methods.items():
        values = {"calibration_texts": [TEXT], "samples": 8, "length": 32, **options}
        request = QuantizeRequest(model_dir=model, out_dir=tmp_path / name, **values)
        library_client.quantize(engine, engine_python(load(), "compress"), request, NoProgress())
    tokens = list(AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"])[:256]
    (plain, _), *served = serve([model, *(tmp_path / name for name in methods)], tokens)
    original, _ = reference(model, tokens)
    noise = (plain - original).abs().mean()
    for name, (logged, answer) in zip(methods, served, strict=True):
        expected, _ = reference(tmp_path / name, tokens)
        rounding = (expected - original).abs().mean()
        bits = METHODS[name][1].get("bits")
        allowed = apart(noise, bits) + (rounding if bits == 8 else 0.0)  # 8-bit inputs are rounded anew
        if bits == 8:
            allowed += overflow(expected)
        assert (logged - expected).abs().mean() < allowed, name
        assert follows(answer, tmp_path / name, tokens), name
        assert rounding > 0, name
