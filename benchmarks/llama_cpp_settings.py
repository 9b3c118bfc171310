"""What settings of llama.cpp's server give on this processor: threads that generate and read, and how they wait.

    python -m benchmarks.llama_cpp_settings MODEL_FOLDER [SETTING...] [--streams 1,4,8] [--rounds 6] [--out FILE]

MODEL_FOLDER is an import of a GGUF file. All servers are up side by side; each round loads every one at every level,
forwards then backwards (A B B A), with prompts that none has seen. The prompt cache is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from backend import settings
from backend.catalog.cards import gguf
from backend.domain.evaluation.document import Variant
from backend.domain.recipe.recipe import Serving
from backend.hardware.engine_status import engine_program
from backend.serving import llama_cpp_options
from backend.serving.llama_cpp import LlamaCppServer
from benchmarks.serving_settings import compare_servers, facts, parse_command

CORES = llama_cpp_options.cores()


class Setting(NamedTuple):
    """Changes to the recipe's serving settings, to the environment, and arguments at the end of the command."""

    serving: Mapping[str, int] = {}
    environment: Mapping[str, str] = {}
    arguments: Sequence[str] = ()


SETTINGS = {
    "ours": Setting(),
    "sleeps-at-once": Setting(environment={"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": ""}),
    "awake": Setting(environment={"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": ""}),
    "libgomp-default": Setting(environment={"GOMP_SPINCOUNT": ""}),
    "spin-1000": Setting(environment={"GOMP_SPINCOUNT": "1000"}),
    "spin-100000": Setting(environment={"GOMP_SPINCOUNT": "100000"}),
    "one-thread": Setting({"threads": 1, "batch_threads": 1}),
    "one-thread-reads-with-all": Setting({"threads": 1, "batch_threads": CORES}),
    "one-slot": Setting({"max_num_seqs": 1}),
    "micro-batch-128": Setting(arguments=("--ubatch-size", "128")),
    "flash-attention-off": Setting(arguments=("--flash-attn", "off")),
}


class TunedServer(LlamaCppServer):
    """The server with one of the settings above."""

    setting = Setting()

    def _command(self) -> list[str]:
        return [*super()._command(), *self.setting.arguments]

    def _environment(self) -> dict[str, str]:
        changed = {**super()._environment(), **self.setting.environment}
        return {name: value for name, value in changed.items() if value}


def main() -> None:
    run = parse_command(__doc__, SETTINGS, "1,4,8")
    most = max(run.streams)
    compare_servers(run, run.model.name, lambda name, folder, stack: start(name, run.model, folder, most, stack))


def start(name: str, model: Path, folder: Path, streams: int, stack: ExitStack) -> LlamaCppServer:
    """Start a server with that setting. It is stopped with `stack`. Raises SystemExit without a GGUF file."""
    file = gguf.find_original(model)
    if file is None:
        raise SystemExit(f"{model} has no GGUF file: give the folder of an import of one")
    serving = Serving(engine="llama.cpp", prefix_caching=False, **SETTINGS[name].serving)
    variant = Variant(name=name, source="model", kind="model", model_path=str(model), gguf=str(file), serving=serving)
    server = TunedServer(
        variant,
        program=engine_program(settings.load(), "llama-cpp"),
        log=folder / f"{name}.log",
        tokens_in_flight=4096,
        streams=streams,
    )
    server.setting = SETTINGS[name]
    stack.enter_context(server)
    server.time_first_answer()
    print(f"{name}: {facts(server)}", flush=True)
    return server


if __name__ == "__main__":
    main()
