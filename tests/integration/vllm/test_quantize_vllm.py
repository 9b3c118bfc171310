"""vLLM's CPU build loads the checkpoints and computes what the dequantized reference computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.precision import Precision
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native import quantize
from backend.evaluate.quality import model_logits
from backend.evaluate.quality import quantized_reference as quality_reference
from tests.helpers.vllm_reference import follows, reference, serve
from tests.rounding import apart
from tests.tiny import TEXT, tiny_llama

pytestmark = pytest.mark.vllm


FOUR_BITS: dict[str, Any] = {"bits": 4, "symmetric": False, "group_size": 32}
MIXED = {
    "model.layers.0.self_attn.q_proj": Precision(method="w8a8", bits=8),
    "model.layers.0.mlp.gate_proj": Precision(method="awq", bits=4, group_size=32, symmetric=False),
    "model.layers.1.mlp.down_proj": Precision(method=None, bits=16),
}
"""Four precisions in one checkpoint, the request's own among them; each is one for all that vLLM fuses."""
REQUESTS: dict[str, dict[str, Any]] = {
    "w8a8": {"method": "w8a8", "bits": 8},
    "awq": {"method": "awq", **FOUR_BITS},
    "autoawq": {"method": "awq", "tuning": {"clip": True, "format": "autoawq"}, **FOUR_BITS},
    "rtn symmetric": {"method": "rtn", **FOUR_BITS, "symmetric": True},
    "gptq in activation order": {"method": "gptq", "tuning": {"act_order": True}, **FOUR_BITS},
    "pruned gptq": {"method": "gptq", "pruning": Pruning(method="sparsegpt", pattern="2:4"), **FOUR_BITS},
    "pruned": {"method": None, "pruning": Pruning(method="wanda", pattern="4:8")},
    "w8a8 static": {"method": "w8a8", "bits": 8, "tuning": {"activations": "static"}},
    "smoothquant": {"method": "smoothquant", "bits": 8},
    "fp8": {"method": "fp8", "bits": 8},
    "kv_cache": {"method": "kv_cache"},
    "mixed": {"method": "awq", **FOUR_BITS, "group_size": 64, "precisions": MIXED},
    "w8a8 and kv_cache": {"method": "w8a8", "bits": 8, "tuning": {"kv_cache": "fp8"}},
}
EIGHT_BIT_INPUTS = {"w8a8", "w8a8 static", "smoothquant", "fp8", "kv_cache", "w8a8 and kv_cache"}
"""Where bfloat16 tips activations, keys or values over 8-bit steps, so that vLLM may differ by as much as the rounding
does."""


def quantized(model: Path, out: Path, name: str) -> Path:
    request = QuantizeRequest(
        model_dir=model, out_dir=out, calibration_texts=[TEXT], samples=8, length=32, **REQUESTS[name]
    )
    quantize(request, NoProgress())
    return out


def agree(tmp_path: Path, names: list[str]) -> None:
    """vLLM's log-probabilities and greedy answers of each artifact are those of its dequantized reference."""
    from transformers import AutoTokenizer

    model = tiny_llama(tmp_path / "model")
    folders = [quantized(model, tmp_path / name.replace(" ", "-"), name) for name in names]
    tokens = list(AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"])[:256]
    served = dict(zip(["original", *names], serve([model, *folders], tokens), strict=True))
    original, _ = reference(model, tokens)
    noise = (served["original"][0] - original).abs().mean()
    for name, folder in zip(names, folders, strict=True):
        logprobs, answer = served[name]
        expected, _ = reference(folder, tokens)
        rounding = (expected - original).abs().mean()
        allowed = apart(noise, REQUESTS[name].get("bits")) + (rounding if name in EIGHT_BIT_INPUTS else 0)
        assert (logprobs - expected).abs().mean() < allowed < expected.std() / 10, name
        assert follows(answer, folder, tokens), name
        if REQUESTS[name].get("bits") == 4:
            assert (logprobs - original).abs().mean() > 5 * noise, name


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_vllm_computes_every_format_that_it_serves_on_a_processor(tmp_path: Path) -> None:
    agree(tmp_path, [name for name in REQUESTS if "kv_cache" not in name])


def with_cache(folder: Path, tokens: list[int], work: Path, *, nearest: bool) -> Any:
    """The log-probabilities of `reference`, layer by layer, with a cache that rounds as asked."""
    import torch

    model = model_logits.open_model(folder, model_logits.DEFAULT_PLACE, print)
    assert isinstance(model, model_logits.LayerwiseModel)
    model.cache = model.outline.cache = quality_reference.rounding_cache(nearest=nearest)
    work.mkdir()
    left = model.run(torch.tensor([tokens]), work, lambda _: None)
    with model.head() as head:
        logits = head(left, 0, slice(0, len(tokens) - 1))
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_vllm_computes_an_fp8_cache_as_the_reference_does_toward_zero(tmp_path: Path) -> None:
    """Its kernel for processors cuts off what E4M3 cannot hold, where GPUs round to the nearest number. With the same
    cut the reference is about as near as bfloat16 lets it be; without it, several times as far away."""
    from transformers import AutoTokenizer

    model = tiny_llama(tmp_path / "model")
    tokens = list(AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"])[:256]
    names = [name for name in REQUESTS if "kv_cache" in name]
    folders = [quantized(model, tmp_path / name.replace(" ", "-"), name) for name in names]
    (plain, _), *served = serve([model, *folders], tokens)
    original, _ = reference(model, tokens)
    noise = (plain - original).abs().mean()
    assert names
    for folder, (logprobs, _) in zip(folders, served, strict=True):
        cut, nearest = (with_cache(folder, tokens, tmp_path / f"{folder.name}-{n}", nearest=n) for n in (False, True))
        near, otherwise = (logprobs - cut).abs().mean(), (logprobs - nearest).abs().mean()
        assert near < 2 * noise + (cut - original).abs().mean()
        assert near < (
            otherwise / 2 if folder.name == "kv_cache" else otherwise
        )  # eight-bit inputs are rounded anew by its kernel


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"method": "int8", "bits": 8}, "Failed to find a kernel that can implement the WNA16 linear layer"),
        ({"method": "fp8", "bits": 8, "tuning": {"activations": "static"}}, "static_scaled_fp8_quant"),
    ],
)
def test_what_the_table_calls_unserved_on_a_processor_is_refused_by_vllm_there(
    tmp_path: Path, request_: dict[str, Any], why: str
) -> None:
    model, out = tiny_llama(tmp_path / "model"), tmp_path / "out"
    quantize(
        QuantizeRequest(model_dir=model, out_dir=out, calibration_texts=[TEXT], samples=8, length=32, **request_),
        NoProgress(),
    )
    with pytest.raises(AssertionError, match=why):
        serve([out], list(range(1, 65)))
