"""Makes a model folder with bfloat16 safetensors of a GGUF file or all its parts, in a child process with limits.

    python -m backend.engines.gguf.convert < REQUEST

The folder is complete and compared with the file, or left unfinished; it is published elsewhere. The caller has read
the file's head (`catalog.cards.gguf`) and refused what is out of bounds. What GGUF does not hold, such as a vision
tower, is not made.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from backend import files
from backend.domain.errors import InvalidModel, NotEnoughMemory, WhetstoneError
from backend.domain.frozen import Frozen
from backend.domain.model.gguf.conversion import Conversion
from backend.domain.model.gguf.pretokenizers import TokenizerPlan, tokenizer_plan
from backend.engines.gguf import forward_check, tokenizer, weights
from backend.engines.gguf.gguf_file import GgufFile
from backend.engines.gguf.reference_forward import Reference

BASE_BYTES = 4 * 10**9
"""Memory of the libraries, a vocabulary as Python objects, and one tensor while it is unpacked."""
PART_BYTES = 12
"""An element of the largest layer while it is proven: 32-bit floats on both sides, and a copy while they are loaded."""
CPU_SECONDS, CPU_SECONDS_A_BILLION = 600, 300
REFUSED = "refused.txt"
"""Why, left in the folder by a child that could not go on."""
PROVEN = "proven.json"
"""File with the child's measurements: the largest relative difference, and the texts that were tried."""


class Request(Frozen):
    """The request to the child process. `memory` in bytes, `seconds` of processor time."""

    parts: tuple[str, ...]
    folder: str
    conversion: Conversion
    memory: int
    seconds: int


def needed_bytes(conversion: Conversion) -> int:
    """Return the memory that a conversion takes: a shard twice while it is written, later the largest layer."""
    written = 2 * min(2 * conversion.parameters, weights.SHARD_BYTES + 2 * conversion.largest_part)
    return BASE_BYTES + max(written, PART_BYTES * conversion.largest_part)


def convert(parts: Sequence[Path], folder: Path, conversion: Conversion, free_bytes: int) -> float:
    """Make the model folder in a child process; return the largest relative difference of a layer from the file's own.

    Raises InvalidModel with the reason, NotEnoughMemory before any work.
    """
    # 1. Refuse what would not fit into memory.
    needed = needed_bytes(conversion)
    if needed > free_bytes:
        raise NotEnoughMemory(
            f"Converting needs {needed / 1e9:.1f} GB of memory and {free_bytes / 1e9:.1f} GB are free: free some."
        )

    # 2. Run the child.
    request = Request(
        parts=tuple(map(str, parts)),
        folder=str(folder),
        conversion=conversion,
        memory=needed,
        seconds=CPU_SECONDS + CPU_SECONDS_A_BILLION * conversion.parameters // 10**9,
    )
    (folder / REFUSED).unlink(missing_ok=True)  # of an earlier try
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-m", "backend.engines.gguf.convert"]
    code = subprocess.run(command, input=request.model_dump_json().encode(), env=environment, check=False).returncode

    # 3. Read its reason, or its measurements.
    if code != 0:
        why = folder / REFUSED
        reason = why.read_text() if why.is_file() else f"its reader ended with code {code}, the log has its last words"
        raise InvalidModel(f"{parts[0].name} could not be converted: {reason.rstrip('.')}.")
    proven = folder / PROVEN
    apart = float(json.loads(proven.read_text())["apart"])
    proven.unlink()
    return apart


def _make(request: Request) -> None:
    """Write weights, config and tokenizer, compare each with the file, and write down what was measured."""
    folder, stored = Path(request.folder), GgufFile([Path(part) for part in request.parts])
    lengths = {key: len(values) for key, values in stored.lists.items()}
    plan = tokenizer_plan(Path(request.parts[0]).name, stored.values, lengths)
    weights.write(stored, request.conversion, folder)
    _write_config(request.conversion, plan, folder)
    tokenizer.write(stored, plan, folder, request.conversion.config["max_position_embeddings"])
    texts = tokenizer.check(stored, plan, folder)
    apart = forward_check.check(Reference(stored), folder)
    files.write(folder / PROVEN, json.dumps({"apart": apart, "texts": texts}) + "\n")


def _write_config(conversion: Conversion, plan: TokenizerPlan, folder: Path) -> None:
    """Write config.json, and generation_config.json with every token that ends an answer."""
    import torch
    from transformers import AutoConfig

    ids = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    special = {field: plan.ids.get(name) for field, name in ids.items()}
    config = AutoConfig.for_model(conversion.model_type, **conversion.config, **special)
    config.architectures, config.dtype = [conversion.architecture], torch.bfloat16
    config.save_pretrained(folder)
    generation = {field: number for field, number in special.items() if number is not None}
    ends = list(dict.fromkeys(plan.ids[name] for name in ("eos", "eot", "eom") if name in plan.ids))
    if len(ends) > 1:
        generation["eos_token_id"] = ends  # type: ignore[assignment]
    files.write(folder / "generation_config.json", json.dumps(generation, indent=1) + "\n")


def main() -> int:
    request = Request.model_validate_json(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_DATA, (request.memory, request.memory))
    resource.setrlimit(resource.RLIMIT_CPU, (request.seconds, request.seconds))
    refused = Path(request.folder) / REFUSED
    try:
        _make(request)
    except ImportError:
        files.write(refused, "the library gguf is missing from this environment: run `make setup` again")
        return 1
    except (WhetstoneError, ValueError, KeyError, IndexError, MemoryError, NotImplementedError, RuntimeError) as error:
        first = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        files.write(refused, first[:400])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
