"""The wide fixture: the starter target's MLP tiled k times in whole blocks, down projection divided by k.

    y = sum over k copies of (down / k)(silu(gate x) * up x) = down(silu(gate x) * up x)

So it computes the same function with k times the weight traffic: a large model's memory behaviour with a small model's
real quality and draft acceptance. k is a power of two, so that the division is exact in bfloat16. A synthetic best case
for speculative decoding: the draft is some 1/400 of the target.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from backend.settings import ASSETS

STARTER = ASSETS / "starter" / "target"


def build(folder: Path, times: int = 64) -> int:
    """Write the fixture to `folder`; the number of parameters. Raises ValueError unless `times` is a power of two."""
    if times < 1 or times & (times - 1):
        raise ValueError("times must be a power of two, or the division would not be exact in bfloat16")
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True)
    tensors = load_file(STARTER / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            tensors[name] = tensor.repeat(times, 1).contiguous()
        elif name.endswith("down_proj.weight"):
            tensors[name] = (tensor / times).repeat(1, times).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((STARTER / "config.json").read_text())
    config["intermediate_size"] *= times
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for path in STARTER.glob("*.json"):
        if path.name != "config.json":
            shutil.copyfile(path, folder / path.name)
    return sum(tensor.numel() for tensor in tensors.values())
