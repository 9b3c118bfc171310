"""vLLM's engine on a list of checkpoints, one after another in one process: what it makes of a prompt, or why it
refuses."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SERVE = """
import gc, json, sys
from vllm import LLM, SamplingParams
tokens, models, most = json.load(sys.stdin)
sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, prompt_logprobs=0)
for model in models:
    try:
        llm = LLM(
            model, enforce_eager=True, max_model_len=512, max_num_seqs=4,
            dtype="bfloat16", enable_prefix_caching=False,
        )
        answer = llm.generate([{"prompt_token_ids": tokens}], sampling)[0]
        logged = [row[token].logprob for token, row in zip(tokens[1:], answer.prompt_logprobs[1:])]
        print("ANSWER " + json.dumps([logged, list(answer.outputs[0].token_ids), ""]), flush=True)
        del llm
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        print("ANSWER " + json.dumps([[], [], why]), flush=True)
    gc.collect()
"""


class Answer(NamedTuple):
    """Log-probability of each token of the prompt but the first, the greedy tokens after it; or why there are none."""

    logged: list[float]
    tokens: list[int]
    refused: str


def answers(python: Path, folders: list[Path], tokens: list[int], most: int, lock: Path | None) -> list[Answer]:
    """One a folder; those after a crash say so."""
    request = json.dumps([tokens, [str(folder) for folder in folders], most])
    with locked(lock):
        done = subprocess.run(
            [python, "-c", SERVE],
            input=request,
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT},
            check=False,
        )
    lines = [line.removeprefix("ANSWER ") for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    results = [Answer(*json.loads(line)) for line in lines]
    last = (done.stderr.strip().splitlines() or ["no word"])[-1][:160]
    return results + [Answer([], [], f"exit code {done.returncode}: {last}")] * (len(folders) - len(results))


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Alone on that file, as flock(1) is."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
