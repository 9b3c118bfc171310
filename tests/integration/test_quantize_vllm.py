"""vLLM's CPU build loads both kinds of checkpoint and computes what the dequantized reference computes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backend.domain.progress import Silent
from backend.engines.base import QuantizeRequest
from backend.engines.native import quantize
from backend.settings import CHECKOUT
from tests.tiny import TEXT, tiny_llama

PYTHON = Path(os.environ.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines") / "serve/bin/python"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SERVE = """
import gc, json, sys
from vllm import LLM, SamplingParams
tokens, models = json.load(sys.stdin)
for model in models:
    llm = LLM(model, enforce_eager=True, max_model_len=512, max_num_seqs=8, dtype="bfloat16", enable_prefix_caching=False)
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, prompt_logprobs=0)
    answer = llm.generate([{"prompt_token_ids": tokens}], sampling)[0]
    logprobs = [row[token].logprob for token, row in zip(tokens[1:], answer.prompt_logprobs[1:])]
    print("ANSWER " + json.dumps([logprobs, list(answer.outputs[0].token_ids)]), flush=True)
    del llm
    gc.collect()
"""

pytestmark = pytest.mark.vllm


def reference(folder: Path, tokens: list[int]) -> tuple[Any, Any]:
    """Log-probabilities of each token given those before, [length - 1], and all logits [length, vocabulary], in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0]
    targets = torch.tensor(tokens[1:])[:, None]
    return logits[:-1].log_softmax(-1).gather(1, targets)[:, 0], logits


def quantized(model: Path, out: Path, method: Any) -> Path:
    options: dict[str, Any] = {"bits": 8, "symmetric": True}
    if method == "awq":
        options = {"bits": 4, "symmetric": False, "group_size": 32}
    request = QuantizeRequest(
        model_dir=model, out_dir=out, method=method, calibration_texts=[TEXT], samples=8, length=32, **options
    )
    quantize(request, Silent())
    return out


def serve(models: list[Path], tokens: list[int]) -> list[tuple[Any, list[int]]]:
    import torch

    done = subprocess.run(
        [PYTHON, "-c", SERVE],
        input=json.dumps([tokens, [str(model) for model in models]]),
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=280,
        check=False,
    )
    lines = [line.removeprefix("ANSWER ") for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(lines) == len(models), done.stderr[-3000:]
    return [(torch.tensor(logprobs), answer) for logprobs, answer in map(json.loads, lines)]


def follows(answer: list[int], folder: Path, prompt: list[int]) -> bool:
    """Each token of a greedy answer is the reference's best, up to a hair that bfloat16 may tip."""
    _, logits = reference(folder, prompt + answer)
    rows = logits[len(prompt) - 1 : -1]
    return all(bool(row[token] > row.max() - 0.15) for row, token in zip(rows, answer, strict=True))


def test_vllm_computes_what_the_dequantized_reference_computes(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = tiny_llama(tmp_path / "model")
    methods = ["w8a8", "awq"]
    folders = [quantized(model, tmp_path / method, method) for method in methods]
    tokens = list(AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"])[:256]
    served = dict(zip(["original", *methods], serve([model, *folders], tokens), strict=True))
    original, _ = reference(model, tokens)
    noise = (served["original"][0] - original).abs().mean()
    for method, folder in zip(methods, folders, strict=True):
        logprobs, answer = served[method]
        expected, _ = reference(folder, tokens)
        rounding = (expected - original).abs().mean()
        # bfloat16 tips activations over INT8 steps, so w8a8 may differ by as much as its rounding does; awq may not.
        allowed = noise + rounding if method == "w8a8" else 2 * noise
        assert (logprobs - expected).abs().mean() < allowed < expected.std() / 10
        assert follows(answer, folder, tokens)
    assert (served["awq"][0] - original).abs().mean() > 5 * noise
