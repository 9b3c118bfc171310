"""The native engine on a CUDA device: seconds, memory of device and host, for a model of a given shape.

    python -m benchmarks.gpu_engine --out FOLDER [--shape llama-3.1-8b] [--layers 32] [--methods rtn,awq,...]
    [--device cuda:0] [--limit 600]

The model has the shape of a published one and random weights: time and memory are those of the real one, quality is
not, so none is reported. Every method is a process of its own (benchmarks/quantize_run.py) on the same 128 sequences of
512 tokens. With `--device cpu` and few layers the same is measured on the processor of that machine. Writes
FOLDER/gpu_engine.json after each run; benchmarks/results/gpu_engine.md is made from it by hand, with the card's name.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from backend.catalog.text import calibration_text
from backend.engines.base import QuantizeRequest
from backend.settings import ASSETS, CHECKOUT

SAMPLES, LENGTH = 128, 512
SHAPES: dict[str, dict[str, int]] = {
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
}
"""Shapes as their config.json gives them (meta-llama/Llama-3.1-8B)."""
METHODS: dict[str, dict[str, Any]] = {
    "rtn": {"method": "rtn", "bits": 4, "group_size": 128, "symmetric": False},
    "awq": {"method": "awq", "bits": 4, "group_size": 128, "symmetric": False, "tuning": {"clip": True}},
    "gptq": {
        "method": "gptq",
        "bits": 4,
        "group_size": 128,
        "symmetric": True,
        "tuning": {"act_order": True, "clip": True},
    },
    "fp8": {"method": "fp8", "bits": 8},
    "w8a8": {"method": "w8a8", "bits": 8},
    "smoothquant": {"method": "smoothquant", "bits": 8},
    "sparsegpt": {"pruning": {"method": "sparsegpt", "sparsity": 0.5, "pattern": "2:4"}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model, the results and gpu_engine.json")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a method is stopped")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    # 1. The machine and the model.
    shape = dict(SHAPES[arguments.shape])
    shape["num_hidden_layers"] = arguments.layers or shape["num_hidden_layers"]
    model = arguments.out / f"{arguments.shape}-{shape['num_hidden_layers']}"
    report: dict[str, Any] = {"machine": machine(arguments.device), "shape": shape, "runs": []}
    report["bytes"] = make_model(model, shape, arguments.device)

    # 2. Each method in a process of its own; what is known is written after each.
    for name in arguments.methods:
        row = {"method": name, "device": arguments.device, **run(model, arguments, name)}
        print(json.dumps(row), flush=True)
        report["runs"].append(row)
        written = arguments.out / f"gpu_engine-{arguments.device.partition(':')[0]}.json"
        written.write_text(json.dumps(report, indent=1))


def machine(device: str) -> dict[str, str]:
    import torch
    import transformers

    card = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor()
    return {
        "card": card,
        "cores": str(os.cpu_count()),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def make_model(folder: Path, shape: dict[str, int], device: str) -> int:
    """Write a Llama of `shape` with random bfloat16 weights, a shard a layer; return the bytes of its weights."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    if (folder / "config.json").exists():
        return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    folder.mkdir(parents=True)
    hidden, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    keys = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        tensor = torch.empty(size, dtype=torch.bfloat16, device=device)
        return tensor.normal_(0.0, 0.02, generator=generator).cpu()

    def ones() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16)

    # 1. The layers, a shard each.
    weight_map: dict[str, str] = {}

    def save(shard: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / shard, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, shard))

    for number in range(layers):
        at = f"model.layers.{number}."
        save(
            f"model-{number:05d}.safetensors",
            {
                f"{at}self_attn.q_proj.weight": random(hidden, hidden),
                f"{at}self_attn.k_proj.weight": random(keys, hidden),
                f"{at}self_attn.v_proj.weight": random(keys, hidden),
                f"{at}self_attn.o_proj.weight": random(hidden, hidden),
                f"{at}mlp.gate_proj.weight": random(inner, hidden),
                f"{at}mlp.up_proj.weight": random(inner, hidden),
                f"{at}mlp.down_proj.weight": random(hidden, inner),
                f"{at}input_layernorm.weight": ones(),
                f"{at}post_attention_layernorm.weight": ones(),
            },
        )
    # 2. The embedding, the head and the last norm.
    outside = {
        "model.embed_tokens.weight": random(shape["vocab_size"], hidden),
        "lm_head.weight": random(shape["vocab_size"], hidden),
        "model.norm.weight": ones(),
    }
    save("model-outside.safetensors", outside)
    # 3. Index, tokenizer of the starter model (its ids are a part of this vocabulary), and config.json last.
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((ASSETS / "starter" / "target" / name).read_bytes())
    config = LlamaConfig(**shape, head_dim=hidden // shape["num_attention_heads"], dtype="bfloat16")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def run(model: Path, arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Quantize by one method in a process of its own; return what it took, or why there is no figure."""
    import shutil

    out = arguments.out / f"{model.name}-{name}"
    shutil.rmtree(out, ignore_errors=True)
    request = QuantizeRequest(
        model_dir=model,
        out_dir=out,
        samples=SAMPLES,
        length=LENGTH,
        calibration_texts=calibration_text.texts(None),
        devices=(arguments.device,),
        **METHODS[name],
    )
    described = arguments.out / "request.json"
    described.write_text(request.model_dump_json())
    command = [sys.executable, "-m", "benchmarks.quantize_run", "native", str(described)]
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{os.environ.get('PYTHONPATH', '')}", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=arguments.limit, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return {"stopped_after": arguments.limit}
    finally:
        shutil.rmtree(out, ignore_errors=True)
    if done.returncode:
        return {"failed": done.stderr[-1500:]}
    parsed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return parsed


if __name__ == "__main__":
    main()
