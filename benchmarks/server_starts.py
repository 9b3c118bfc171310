"""What starts and stops of each engine's server leave behind: processes, ports, folders, memory of this program.

    python -m benchmarks.server_starts MODEL_FOLDER [--engines llama.cpp,openvino,vllm] [--starts 50] [--out FILE]

MODEL_FOLDER is an import of a GGUF file. Each server is started, answers one request, and is stopped; every fifth one
is ended by SIGKILL instead, after its answer. Prints a line for each engine, and ends with 1 where something is left.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from backend import settings
from backend.catalog.cards import gguf
from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import Variant
from backend.domain.recipe.recipe import Serving
from backend.hardware import engine_status, probe
from backend.serving.model_server import ModelServer
from backend.serving.servers import make_server
from tests import live_processes

KILLED_EVERY = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--engines", default="llama.cpp,openvino,vllm")
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = [start_often(arguments.model, engine, arguments.starts) for engine in arguments.engines.split(",")]
    document = {"model": arguments.model.name, "hardware": probe.probe(), "rows": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(any(row["left"] for row in rows))


def start_often(model: Path, engine: Any, starts: int) -> dict[str, Any]:
    """Start and stop a server that often; return the times until ready and what is left."""
    file, configured = gguf.find_original(model), settings.load()
    variant = Variant(
        name=engine,
        source="model",
        kind="model",
        model_path=str(model),
        gguf=str(file) if engine != "vllm" else None,
        serving=Serving(engine=engine, max_model_len=512),
    )
    program = engine_status.server_program(configured, variant)
    ready, resident, left = list[float](), list[int](), list[str]()
    with tempfile.TemporaryDirectory(prefix="whetstone-starts-") as folder:
        before = children()
        for number in range(starts):
            server = make_server(
                variant, program=program, log=Path(folder) / "server.log", cache_root=configured.cache / "vllm"
            )
            began = time.monotonic()
            with server:
                ready.append(time.monotonic() - began)
                port = urllib.parse.urlsplit(server.url).port or 0
                server.time_first_answer()
                if number % KILLED_EVERY == KILLED_EVERY - 1:
                    kill(server)
            left += [f"start {number}: {each}" for each in sorted(children() - before)]
            left += [f"start {number}: port {port}"] if is_listening(port) else []
            resident.append(psutil.Process().memory_info().rss)
            print(f"{engine}: {number + 1} of {starts}, ready after {ready[-1]:.1f} s", file=sys.stderr, flush=True)
        left += [f"file {path.name}" for path in Path(folder).iterdir() if path.name != "server.log"]
    row = {
        "engine": engine,
        "starts": starts,
        "killed": starts // KILLED_EVERY,
        "ready_s": round(median(ready), 2),
        "longest_ready_s": round(max(ready), 2),
        "grew_mb": round((resident[-1] - resident[min(4, starts - 1)]) / 1e6, 1),
        "left": left,
    }
    print(json.dumps(row), flush=True)
    return row


def kill(server: ModelServer) -> None:
    """End the server's process by SIGKILL; the server must then say that it ended."""
    os.kill(server.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(server.pid)], timeout=10)
    try:
        server.time_first_answer()
    except ServerFailed:
        return
    raise SystemExit(f"{server.title} answered after SIGKILL")


def children() -> set[str]:
    """Return the processes that this program started and that have not ended."""
    return {f"{child.pid} {name}" for child in live_processes.children() if (name := live_processes.name(child))}


def is_listening(port: int) -> bool:
    """Tell whether a process listens on the port."""
    return any(each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in psutil.net_connections("tcp"))


if __name__ == "__main__":
    main()
