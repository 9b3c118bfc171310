"""Times OpenVINO GenAI through Whetstone's server beside the same pipeline in process, in turns.

    python -m benchmarks.openvino_overhead MODEL_FOLDER [--streams 1,4,8] [--rounds 6] [--tokens 64]

MODEL_FOLDER is an import that keeps its GGUF file. Both have the model in memory and never run at the same time; the
order turns round. Prints milliseconds a token and tokens/s of both and the ratio of each round. Needs
`whetstone engines install openvino`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from backend import settings
from backend.catalog.cards import gguf
from backend.domain.evaluation.document import Variant
from backend.domain.recipe.recipe import Serving
from backend.hardware.engine_status import engine_program
from backend.serving.model_server import NICE
from backend.serving.openvino import options
from backend.serving.openvino.server import OpenVinoServer

PROMPT_TOKENS = 32
CACHE_TOKENS = 8192
IN_PROCESS = """
import json, pathlib, sys, time
import numpy, openvino
from backend.serving.openvino_program.pipeline import Pipeline, PipelineOptions
model, threads, cache_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pipeline = Pipeline(PipelineOptions(pathlib.Path(model), "CPU", threads, "auto", cache_tokens, 256, False))
engine = pipeline._pipeline
print("ready", flush=True)
for line in sys.stdin:
    streams, tokens, prompt = json.loads(line)
    config = pipeline._plain_config(tokens, frozenset(), ignore_eos=True)
    ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
    began = time.perf_counter()
    handles = [engine.add_request(number, ids, config) for number in range(streams)]
    while engine.has_non_finished_requests():
        engine.step()
        for handle in handles:
            while handle.can_read():
                handle.read()
    print(time.perf_counter() - began, flush=True)
"""
"""The pipeline alone, as it is set up by the server's own code; a line of input is one round."""


def time_in_process(child: subprocess.Popen[str], streams: int, tokens: int, prompt: list[int]) -> float:
    """Return the seconds of one round of the pipeline alone."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps([streams, tokens, prompt]) + "\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def time_served(server: OpenVinoServer, streams: int, tokens: int, prompt: list[int]) -> float:
    """Return the seconds of one round of streams through the server, one client process that reads them all."""
    body: dict[str, Any] = {"model": server.served_name, "prompt": prompt, "max_tokens": tokens, "stream": True}
    body |= {"temperature": 0, "ignore_eos": True}
    config = [f'header = "Authorization: Bearer {server.key}"', "no-progress-meter", "parallel"]
    config += [f"parallel-max = {streams}", "parallel-immediate", f"data = {json.dumps(json.dumps(body))}"]
    for _ in range(streams):  # an output for each URL: curl prints the answers of those without one
        config += [f'url = "{server.url}/completions"', 'output = "/dev/null"']
    began = time.perf_counter()
    subprocess.run(["curl", "--config", "-"], input="\n".join(config), text=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print one line for each number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--streams", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    chosen = parser.parse_args()
    # 1. Both with the model in memory.
    file = gguf.find_original(chosen.folder)
    if file is None:
        raise SystemExit(f"{chosen.folder} keeps no GGUF file: give the folder of an import of one")
    program, serving = engine_program(settings.load(), "openvino"), Serving(engine="openvino")
    variant = Variant(
        name="model", source="model", kind="model", model_path=str(chosen.folder), gguf=str(file), serving=serving
    )
    log = Path(tempfile.mkdtemp()) / "server.log"
    command = [
        *NICE,
        str(program),
        "-c",
        IN_PROCESS,
        str(file),
        str(options.llama_cpp_options.cores()),
        str(CACHE_TOKENS),
    ]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=options.environment()
        ) as child,
        OpenVinoServer(variant, program=program, log=log, tokens_in_flight=CACHE_TOKENS) as server,
    ):
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        prompt = (server.prompt_tokens("The history of the city begins with a river. " * 8, chat=False))[:PROMPT_TOKENS]
        # 2. In turns, the order turned round each time; the first round warms up.
        for streams in map(int, chosen.streams.split(",")):
            seconds: dict[str, list[float]] = {"in process": [], "served": []}
            for number in range(chosen.rounds + 1):
                for name in sorted(seconds, reverse=bool(number % 2)):
                    timed = (
                        time_served(server, streams, chosen.tokens, prompt)
                        if name == "served"
                        else time_in_process(child, streams, chosen.tokens, prompt)
                    )
                    seconds[name] += [timed] if number else []
            alone, served = (median(seconds[name]) for name in ("in process", "served"))
            ratios = [b / a for a, b in zip(seconds["in process"], seconds["served"], strict=True)]
            print(
                f"{streams} streams: in process {alone / chosen.tokens * 1000:.2f} ms a token, served "
                f"{served / chosen.tokens * 1000:.2f}; {streams * chosen.tokens / alone:.1f} and "
                f"{streams * chosen.tokens / served:.1f} tokens/s; ratios {', '.join(f'{r:.3f}' for r in ratios)}",
                flush=True,
            )
        child.stdin.close()


if __name__ == "__main__":
    main()
