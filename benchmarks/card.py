"""How fast the card of a model in 400 shards is read: from local disk, and from a hub by ranges of bytes, with what
that sends.

    .venv/bin/python -m benchmarks.card [--note "..."]

The model has the tensors of Llama 3.1 405B (126 layers, real names, shapes and sizes) spread over 400 files, which are
sparse: their headers are whole, their weights are holes. The hub is tests/fakes/hub.py on loopback, a small Python
server: its seconds say little of a real one, requests and bytes do. Writes benchmarks/results/card.md and .json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from backend.catalog.cards.card import read_card, read_remote_card
from backend.catalog.remote.hub import HubSource
from backend.hardware import probe
from backend.settings import ASSETS
from tests.fakes.running import running

RESULTS = Path(__file__).parent / "results"
ID = "org/wide"
SHARDS, RUNS = 400, 7
LIMITS = {"local_s": 1.0, "network_bytes": 3_000_000}
LAYERS, HIDDEN, WIDE, KV, VOCABULARY = 126, 16384, 53248, 1024, 128256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def tensors() -> dict[str, list[int]]:
    """Name -> shape, in the order in which checkpoints are written."""
    values = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN]}
    for layer in range(LAYERS):
        text = f"model.layers.{layer}"
        values |= {
            f"{text}.self_attn.{name}_proj.weight": [size, HIDDEN]
            for name, size in (("q", HIDDEN), ("k", KV), ("v", KV), ("o", HIDDEN))
        }
        values |= {f"{text}.mlp.gate_proj.weight": [WIDE, HIDDEN], f"{text}.mlp.up_proj.weight": [WIDE, HIDDEN]}
        values |= {f"{text}.mlp.down_proj.weight": [HIDDEN, WIDE]}
        values |= {f"{text}.{name}_layernorm.weight": [HIDDEN] for name in ("input", "post_attention")}
    return values | {"model.norm.weight": [HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}


def build(folder: Path) -> int:
    """Write the model; answers with its parameters."""
    folder.mkdir(parents=True)
    every = list(tensors().items())
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        reserved = every[number * len(every) // SHARDS : (number + 1) * len(every) // SHARDS]
        _shard(folder / file, reserved)
        weight_map |= dict.fromkeys((name for name, _ in reserved), file)
    index = {"metadata": {"total_size": sum(_bytes(shape) for _, shape in every)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_bytes((ASSETS / "starter" / "draft" / "tokenizer.json").read_bytes())
    return sum(_bytes(shape) for _, shape in every) // 2


def _bytes(shape: list[int]) -> int:
    return 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)


def _shard(path: Path, reserved: list[tuple[str, list[int]]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in reserved:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + _bytes(shape)]}
        end += _bytes(shape)
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--note", default="")
    note = parser.parse_args().note
    load = psutil.getloadavg()
    with tempfile.TemporaryDirectory(prefix="whetstone-card-") as scratch:
        root = Path(scratch)
        parameters = build(root / ID)
        local = [_timed(lambda: read_card(root / ID).parameters, parameters) for _ in range(RUNS)]
        with running("hub.py", "--root", root) as url:
            remote = [
                _timed(lambda: read_remote_card(HubSource(ID, None, url)).parameters, parameters) for _ in range(RUNS)
            ]
            _ask(f"{url}/-/forget")
            read_remote_card(HubSource(ID, None, url))
            log = _ask(f"{url}/-/log")
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{probe.probe()['cpu']}, {probe.cores()} cores, python {platform.python_version()}",
        "load_average": list(load),
        "note": note,
        "shards": SHARDS,
        "tensors": len(tensors()),
        "parameters": parameters,
        "local_s": local,
        "remote_s": remote,
        "network_bytes": sum(entry["sent"] for entry in log),
        "requests": len(log),
        "limits": LIMITS,
    }
    text = markdown(document)
    (RESULTS / "card.json").write_text(json.dumps(document, indent=1) + "\n")
    (RESULTS / "card.md").write_text(text)
    print(text)


def _timed(read: Any, expected: int) -> float:
    began = time.perf_counter()
    assert read() == expected
    return time.perf_counter() - began


def _ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def markdown(values: dict[str, Any]) -> str:
    """The figures with their limits."""
    seconds = {name: _range(values[name]) for name in ("local_s", "remote_s")}
    sent = f"{values['network_bytes'] / 1e6:.2f} MB in {values['requests']} requests"
    return f"""# Card of a model in {values["shards"]} shards

{values["hardware"]}, load average {values["load_average"][0]:.1f}, {values["date"][:10]}. `python -m benchmarks.card`.
{values["parameters"] / 1e9:.1f} billion parameters in {values["tensors"]:,} tensors. {values["note"]}

| figure | median of {RUNS} (lowest to highest) | limit |
|---|---|---|
| local disk | {seconds["local_s"]} | {LIMITS["local_s"]:g} s |
| hub on loopback | {seconds["remote_s"]} | none |
| sent by the hub, one run | {sent} | {LIMITS["network_bytes"] / 1e6:g} MB |

The files were just written, so the local figure is from the page cache. Half of the requests are redirects, as the hub
makes them; the hub here is a small Python server on the same cores, so its seconds are not a real hub's.
"""


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
