"""Writes the GGUF file of an artifact's model folder, and compares each of its tensors with ours, in a child process.

    python -m backend.engines.gguf.export < REQUEST

The request is a JSON object: `folder`, the artifact's model folder; `name` of the model; `out`, the file to write. The
answer is one line of JSON, `types` and `difference`, or `refused` with the reason. The file gets its name only when it
is whole and compared.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from backend.domain.errors import InvalidModel, WhetstoneError
from backend.engines.gguf import blocks, writer
from backend.engines.gguf.gguf_file import GgufFile

FILE_TYPES = {"Q4_0": "MOSTLY_Q4_0", "Q4_1": "MOSTLY_Q4_1", "Q8_0": "MOSTLY_Q8_0"}


def export(folder: Path, name: str, out: Path) -> dict[str, Any]:
    """Write the file; return the matrices by type and the largest difference of a tensor as a share of what is allowed.

    Raises InvalidModel, ImpossibleStack, ModelDamaged.
    """
    # 1. The forms of all tensors, before anything is written.
    source = writer.open_source(folder, name)
    forms = {tensor.name: blocks.form(source, tensor) for tensor in source.plan.tensors}
    counted = Counter(forms[tensor.name].kind for tensor in source.plan.tensors if len(tensor.shape) > 1)
    most = next((kind for kind, _ in counted.most_common() if kind in FILE_TYPES), "")

    # 2. The file, compared before it gets its name.
    partial = out.with_name(f".{out.name}.partial")
    try:
        about = {"general.description": "Written by Whetstone of weights that were quantized before"}
        file_type = FILE_TYPES.get(most, "MOSTLY_BF16")
        writer.write(partial, source, lambda tensor: forms[tensor.name], file_type=file_type, about=about)
        worst = compare(source, partial)
        partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    return {"types": dict(counted.most_common()), "difference": worst}


def compare(source: writer.Source, file: Path) -> float:
    """Return the largest difference of a tensor as a share of what is allowed. Raises InvalidModel above that."""
    import torch

    stored, worst = GgufFile([file]), 0.0
    for tensor in source.plan.tensors:
        written = stored.floats(tensor.name)
        if tensor.becomes[0] in getattr(source.weights, "parts", {}):
            apart = blocks.difference(blocks.read_matrix(source, tensor), written)
        else:
            same = torch.equal(torch.from_numpy(written.copy()), writer.read_tensor(source, tensor).float())
            apart = 0.0 if same else float("inf")
        if not apart <= 1:
            raise InvalidModel(f"The tensor {tensor.becomes[0]} of the file differs from ours: nothing was written.")
        worst = max(worst, apart)
    return worst


def main() -> int:
    request = json.loads(sys.stdin.buffer.read())
    try:
        answer = export(Path(request["folder"]), request["name"], Path(request["out"]))
    except (WhetstoneError, OSError) as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
