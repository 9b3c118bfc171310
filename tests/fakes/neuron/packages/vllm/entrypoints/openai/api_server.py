"""`python -m vllm.entrypoints.openai.api_server` with either Neuron plugin: refuses what they refuse, then answers.

VLLM_NEURON_FRAMEWORK names NxD Inference, which the plugin up to 0.5 serves; else it is vLLM Neuron, from 0.21 on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import neuron_plugin as plugin
import neuron_recorder as recorder

FLAGS = ("model", "served-model-name", "host", "dtype", "kv-cache-dtype")
NUMBERS = ("port", "tensor-parallel-size", "max-model-len", "max-num-seqs", "max-num-batched-tokens")


def parsed() -> dict[str, Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in FLAGS:
        parser.add_argument(f"--{name}")
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    for name in ("additional-config", "speculative-config"):
        parser.add_argument(f"--{name}", type=json.loads)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    for name in ("disable-uvicorn-access-log", "enable-prompt-tokens-details"):
        parser.add_argument(f"--{name}", action="store_true")
    return {name: value for name, value in vars(parser.parse_args()).items() if value is not None}


def load_nxd(options: dict[str, Any]) -> None:
    """neuronx_distributed_model_loader.py of vllm-neuron 0.2: what cannot be loaded is compiled again, into the folder
    given."""
    from neuronx_distributed_inference.models.config import NeuronConfig

    assert not options["enable_prefix_caching"], "the compiled graphs have no block KV layout"
    speculation = options.get("speculative_config")
    assert speculation is None or speculation["method"] in {"eagle", "eagle3"}, "draft models are of the V0 fork alone"
    override_neuron_config = options["additional_config"]["override_neuron_config"]
    NeuronConfig(
        **override_neuron_config,
        **({"quantized_checkpoints_path": "/none"} if override_neuron_config.get("quantized") else {}),
    )
    folder = Path(os.environ["NEURON_COMPILED_ARTIFACTS"])
    try:
        assert options["tensor_parallel_size"] == json.loads((folder / "neuron_config.json").read_text())["tp_degree"]
        (folder / "model.pt").read_bytes()
        for rank in range(options["tensor_parallel_size"]):
            (folder / f"weights/tp{rank}_sharded_checkpoint.safetensors").read_bytes()
    except (FileNotFoundError, ValueError) as error:
        print(f"WARNING: Exception: {error}", flush=True)
        print(f"WARNING: Unable to find precompiled artifacts from {folder}. Recompiling...", flush=True)
        (folder / "neuron_config.json").write_text("overwritten")
        time.sleep(3600)
    print(f"INFO: Successfully loaded pre-compiled model artifacts from {folder}", flush=True)


def load_native(options: dict[str, Any]) -> None:
    for key in plugin.graphs(options["model"], options):
        if (plugin.entry(key) / "graph.neff").exists():
            (plugin.entry(key) / "used").touch()
            print(f"INFO: Local cache hit for key: {key}", flush=True)
        elif os.environ.get("VLLM_NEURON_DISABLE_WARMUP_COMPILE") == "1":
            raise RuntimeError(
                f"VLLM_NEURON_DISABLE_WARMUP_COMPILE: local compile cache miss for key {key}. All graphs must be "
                f"pre-compiled "
                "when warmup compilation is disabled."
            )


def main() -> None:
    options = parsed()
    recorder.record("vllm.entrypoints.openai.api_server", **options)
    if not recorder.attached():
        raise RuntimeError("No Neuron devices found. Skipping Neuron plugin registration.")
    framework = os.environ.get("VLLM_NEURON_FRAMEWORK")
    load_nxd(options) if framework == "neuronx-distributed-inference" else load_native(options)
    recorder.runtime(options["tensor_parallel_size"])
    name, tokens = options["served_model_name"], [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            metrics = f"vllm:generation_tokens_total {tokens[0]}\n".encode()
            self.answer(metrics if self.path == "/metrics" else json.dumps({"data": [{"id": name}]}).encode())

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = request.get("max_completion_tokens") or request.get("max_tokens") or 1
            tokens[0] += number
            usage = {"prompt_tokens": 7, "completion_tokens": number}
            if not request.get("stream"):
                self.answer(json.dumps({"choices": [{"text": "a " * number}], "usage": usage}).encode())
                return
            self.send_response(200)
            self.end_headers()
            for count in range(number):
                time.sleep(0.002)
                self.event({"choices": [{"index": 0, "text": f"a{count} ", "delta": {"content": f"a{count} "}}]})
            self.event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, document: dict[str, Any]) -> None:
            self.wfile.write(b"data: %s\n\n" % json.dumps(document).encode())
            self.wfile.flush()

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    ThreadingHTTPServer((options["host"], options["port"]), Handler).serve_forever()


if __name__ == "__main__":
    main()
