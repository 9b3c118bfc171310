"""The table of families: family x technique x (optimized, vLLM loads it, its answers agree with the fake-quantized reference).

Nothing is skipped: what vLLM does not load stands in the table with its reason, and in `REFUSED` with the same words.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend.domain.progress import Silent
from backend.engines.base import QuantizeRequest
from backend.engines.native import quantize
from backend.evaluate import quality_reference
from backend.settings import CHECKOUT
from tests.families import KINDS, logits, tiny
from tests.tiny import TEXT

pytestmark = [pytest.mark.campaign, pytest.mark.vllm]

PYTHON = Path(os.environ.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines") / "serve/bin/python"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SERVE = """
import json, sys
from vllm import LLM, SamplingParams
tokens, model = json.load(sys.stdin)
try:
    llm = LLM(model, enforce_eager=True, max_model_len=256, max_num_seqs=4, dtype="bfloat16", enable_prefix_caching=False)
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    answer = llm.generate([{"prompt_token_ids": tokens}], sampling)[0]
    print("ANSWER " + json.dumps([row[token].logprob for token, row in zip(tokens[1:], answer.prompt_logprobs[1:])]))
except Exception as error:
    print("REFUSED " + (str(error).strip().splitlines() or [type(error).__name__])[0][:160])
"""
TECHNIQUES: dict[str, dict[str, Any]] = {
    "awq": {"bits": 4, "group_size": 32, "symmetric": False},
    "w8a8": {"bits": 8, "symmetric": True},
}
_BLOOM = "shape '[4, 3, -1]' is invalid"  # its loader turns the fused projection round, and the shape of packed weights with it
_MOE = "No WNA16 MoE backend"  # vLLM finds no kernel for packed 4-bit experts on a processor
REFUSED: dict[tuple[str, str], str] = {
    ("bloom", "awq"): _BLOOM,
    ("bloom-post-norm", "awq"): _BLOOM,
    ("mixtral", "awq"): _MOE,
    ("qwen3-moe", "awq"): _MOE,
}
"""What vLLM 0.32.0 on a processor does not load: by kind and technique, what the reason says."""


class Row(NamedTuple):
    kind: str
    technique: str
    optimized: str
    loads: str
    agree: str


def expected(model: Any, tokens: list[int]) -> Any:
    """Log-probability of each token given those before [length - 1], in fp32."""
    import torch

    with torch.no_grad():
        scores = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1].log_softmax(-1)
    return scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def serve(folder: Path, tokens: list[int]) -> tuple[Any, str]:
    """vLLM's log-probabilities, or None and why not."""
    import torch

    done = subprocess.run(
        [PYTHON, "-c", SERVE], input=json.dumps([tokens, str(folder)]), capture_output=True, text=True,
        env={**os.environ, **ENVIRONMENT}, timeout=600, check=False,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("ANSWER "):
            return torch.tensor(json.loads(line.removeprefix("ANSWER "))), ""
        if line.startswith("REFUSED "):
            return None, line.removeprefix("REFUSED ")
    return (
        None,
        f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1][:160] if done.stderr.strip() else 'no word'}",
    )


def row(folder: Path, kind: str, technique: str) -> Row:
    import torch

    source, out = tiny(folder / "source", kind), folder / "out"
    tokens = torch.randint(1, 256, (96,), generator=torch.Generator().manual_seed(1)).tolist()
    options = {**TECHNIQUES[technique], "calibration_texts": [TEXT], "samples": 8, "length": 32}
    quantize(QuantizeRequest(model_dir=source, out_dir=out, method=technique, **options), Silent())
    served, why = serve(out, tokens)
    if served is None:
        return Row(kind, technique, "yes", f"no: {why}", "not served")
    reference = expected(quality_reference.load(out).eval(), tokens)
    original = logits(source, torch.tensor([tokens]))[0, :-1].log_softmax(-1)
    original = original.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    apart, rounding = (served - reference).abs().mean(), (reference - original).abs().mean()
    allowed = 0.02 * reference.std() + (rounding if technique == "w8a8" else 0.0)
    return Row(kind, technique, "yes", "yes", "yes" if apart < allowed else f"no: {apart:.4f} nats apart, {allowed:.4f} allowed")


def test_the_table_of_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for kind in KINDS:
        for technique in TECHNIQUES:
            rows.append(row(tmp_path / f"{kind}-{technique}", kind, technique))
            with capsys.disabled():
                print(" | ".join(rows[-1]), flush=True)
    for found in rows:
        reason = REFUSED.get((found.kind, found.technique))
        if reason is None:
            assert (found.loads, found.agree) == ("yes", "yes"), found
        else:
            assert reason in found.loads, found
