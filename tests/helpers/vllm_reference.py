"""Compares what vLLM serves with the reference."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from backend.evaluate.quality import model_logits
from backend.settings import CHECKOUT
from tests.vllm_offline import BEGIN

PYTHON = Path(os.environ.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines") / "serve/bin/python"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SERVE = f"""{BEGIN}
tokens, models = json.load(sys.stdin)
for model in models:
    llm = LLM(
        model, enforce_eager=True, max_model_len=512, max_num_seqs=8,
        dtype="bfloat16", enable_prefix_caching=False,
    )
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, prompt_logprobs=0)
    answer = llm.generate([{{"prompt_token_ids": tokens}}], sampling)[0]
    logprobs = [row[token].logprob for token, row in zip(tokens[1:], answer.prompt_logprobs[1:])]
    print("ANSWER " + json.dumps([logprobs, list(answer.outputs[0].token_ids)]), flush=True)
    del llm
    collect()
"""


def reference(folder: Path, tokens: list[int]) -> tuple[Any, Any]:
    """Log-probabilities of each token given those before, [length - 1], and all logits [length, vocabulary], in
    fp32."""
    import torch

    whole = model_logits.WholeModel(folder)
    with torch.inference_mode():
        logits = whole.model(torch.tensor([tokens])).logits[0]
    targets = torch.tensor(tokens[1:])[:, None]
    return logits[:-1].log_softmax(-1).gather(1, targets)[:, 0], logits


def serve(models: list[Path], tokens: list[int]) -> list[tuple[Any, list[int]]]:
    import torch

    done = subprocess.run(
        [PYTHON, "-c", SERVE],
        input=json.dumps([tokens, [str(model) for model in models]]),
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=840,
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
