"""One measured AutoRound quantization for benchmarks/low_bits.py, under the interpreter that has Intel's `auto-round`.

    PYTHON auto_round_run.py REQUEST.json

The request names the model's folder, a new folder for the result, a JSON file of calibration token ids
[samples, length], bits, group size and steps a layer. The result is an ordinary checkpoint in the model's own 16-bit
type whose weights have the values that were rounded to (`format="fake"`), so that the library's packing plays no part.
Prints one line of JSON: `seconds` of the whole call (load, calibrate, tune, write), `peak_bytes` above what the imports
take, and `versions`. Imports nothing of this project: its environment is another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

BATCH = 8
"""auto-round's default."""


def main(path: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not the answer
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.models.llama import modeling_llama  # noqa: F401 - so that its import is not measured

    request = json.loads(Path(path).read_text())
    tokens = torch.tensor(json.loads(Path(request["tokens"]).read_text()))
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): the peak is counted from here
    floor, began = _status("VmRSS"), time.monotonic()
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype="auto", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(request["model"], local_files_only=True)
    tuner = AutoRound(
        model,
        tokenizer,
        bits=request["bits"],
        group_size=request["group_size"],
        sym=False,
        iters=request["steps"],
        dataset=torch.utils.data.DataLoader(tokens, batch_size=BATCH),
        nsamples=len(tokens),
        seqlen=tokens.shape[1],
        batch_size=BATCH,
        device_map="cpu",
        amp=request["half"],
        enable_torch_compile=False,
    )
    tuner.quantize_and_save(request["out"], format="fake")
    seconds = time.monotonic() - began
    values = {
        "seconds": seconds,
        "peak_bytes": _status("VmHWM") - floor,
        "versions": {name: version(name) for name in ("auto-round", "torch", "transformers")},
    }
    print(json.dumps(values), file=answers, flush=True)


def _status(field: str) -> int:
    """Bytes, from /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1])
