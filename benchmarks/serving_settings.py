"""What settings of vLLM alone give on this processor: threads, binding, processes, OpenMP's waiting, memory allocator.

    python -m benchmarks.serving_settings MODEL [SETTING...] [--streams 1,8] [--rounds 6] [--out FILE]

All servers are up side by side; each round loads every one at every level, forwards then backwards (A B B A), with
prompts that none has seen. Beside the latency stand the processor seconds of the server a token, which what else runs
here moves less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from backend import processes, settings
from backend.domain.evaluation.document import Variant
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.domain.recipe.recipe import Serving
from backend.evaluate.load import run_level
from backend.hardware import engine_status, probe, processor_speed
from backend.serving.model_server import ModelServer
from backend.serving.vllm import VllmServer
from backend.serving.vllm_options import Tuning, all_cores, tuning

CORES = os.cpu_count() or 1
OURS = tuning()
BOUND = {"VLLM_CPU_OMP_THREADS_BIND": all_cores()}
SETTINGS = {
    "bound": Tuning(BOUND),
    "ours": OURS,
    "one-thread": Tuning({"VLLM_CPU_OMP_THREADS_BIND": str(CORES - 1)}),
    "unbound": Tuning({"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(CORES), "KMP_BLOCKTIME": "5"}),
    "unbound-asleep": Tuning(
        {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(CORES), "KMP_BLOCKTIME": "0"}
    ),
    "ours-asleep": Tuning({**OURS.environment, "KMP_BLOCKTIME": "0"}, OURS.arguments),
    "ours-awake": Tuning({**OURS.environment, "KMP_BLOCKTIME": "200"}, OURS.arguments),
    "ours-one-thread": Tuning({**OURS.environment, "OMP_NUM_THREADS": "1"}, OURS.arguments),
    "ours-block-32": Tuning(OURS.environment, (*OURS.arguments, "--block-size", "32")),
    "ours-no-statistics": Tuning(OURS.environment, (*OURS.arguments, "--disable-log-stats")),
    "ours-eager": Tuning(OURS.environment, (*OURS.arguments, "--enforce-eager")),
}
ANSWER = 64
"""Tokens, however the answer would end."""
PROMPT = (
    "Write line {number} of a long list of small facts about the city of Ravenna, one short sentence each, no repeats."
)


class SettingsRun(NamedTuple):
    """A request on the command line: the model's folder, the settings and loads to measure, and where to write."""

    model: Path
    names: list[str]
    streams: list[int]
    rounds: int
    out: Path | None


def parse_command(description: str | None, settings_known: Collection[str], streams: str) -> SettingsRun:
    """Return what the command line asks for; `streams` is the default. Ends with code 2 and a sentence where it is
    wrong."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("names", nargs="*", choices=[*settings_known, []], metavar="SETTING")
    parser.add_argument("--streams", default=streams)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    levels = [int(part) for part in arguments.streams.split(",")]
    return SettingsRun(
        arguments.model, arguments.names or list(settings_known), levels, arguments.rounds, arguments.out
    )


def compare_servers(
    run: SettingsRun, model_name: str, start_one: Callable[[str, Path, ExitStack], ModelServer]
) -> None:
    """Start a server of each setting, load them in turn, print the figures and write them where that was asked.

    `start_one` starts the server of a setting, with its log in the folder, and stops it with the stack.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {name: start_one(name, Path(folder), stack) for name in run.names}
        rows = measure(servers, run.streams, run.rounds, Path(folder))
        starts = {name: facts(server) for name, server in servers.items()}
    show(run.names, run.streams, rows)
    document = {"model": model_name, "hardware": probe.probe(), "starts": starts, "rows": rows}
    if run.out:
        run.out.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    run = parse_command(__doc__, SETTINGS, "1,8")
    compare_servers(run, str(run.model), lambda name, folder, stack: start(name, run.model, folder, stack))


def start(name: str, model: Path, folder: Path, stack: ExitStack) -> VllmServer:
    """A server with that setting, its compile cache kept with the studio's."""
    configured = settings.load()
    variant = Variant(
        name=name, source=str(model), kind="model", model_path=str(model), serving=Serving(prefix_caching=False)
    )
    server = VllmServer(
        variant,
        python=engine_status.engine_python(configured, "serve"),
        log=folder / f"{name}.log",
        cache_root=configured.cache / "vllm",
        tokens_in_flight=4096,
        tuning=SETTINGS[name],
    )
    stack.enter_context(server)
    server.time_first_answer()
    print(f"{name}: {facts(server)}", flush=True)
    return server


def facts(server: ModelServer) -> dict[str, Any]:
    return {
        "startup": server.startup.model_dump() if server.startup else None,
        "held_gb": round(server.resident_bytes() / 1e9, 2),
    }


def measure(
    servers: Mapping[str, ModelServer], streams: Sequence[int], rounds: int, folder: Path
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for turn in range(-1, rounds):
        order = list(servers) if turn % 2 else list(servers)[::-1]
        for level in streams:
            for name in order:
                row = level_of(
                    name, servers[name], level, folder / f"{turn}-{level}-{name}", 1000 * (turn + 2) + 100 * level
                )
                rows += [{"round": turn, **row}] if turn >= 0 else []
    return rows


def level_of(name: str, server: ModelServer, streams: int, work: Path, first: int) -> dict[str, Any]:
    """One level: median time a token (ms), tokens a second, and the server's processor seconds a token."""
    prompts = work.with_suffix(".jsonl")
    prompts.write_text(
        "".join(json.dumps({"prompt": PROMPT.format(number=first + i)}) + "\n" for i in range(4 * streams))
    )
    plan = LoadPlan(
        url=server.url,
        model=server.served_name,
        load=Load("closed", streams),
        requests=2 * streams,
        warmup_requests=0,
        max_tokens=ANSWER,
        prompts=str(prompts),
        temperature=0.0,
        ignore_eos=True,
    )
    before, began = used(server), time.monotonic()
    records, _ = run_level(plan, work)
    seconds, spent = time.monotonic() - began, used(server) - before
    tokens = sum(record.output_tokens or 0 for record in records)
    times = [
        (r.last_content - r.first_content) / (ANSWER - 1) * 1e3 for r in records if r.first_content and r.last_content
    ]
    return {
        "setting": name,
        "streams": streams,
        "tpot_ms": statistics.median(times),
        "tokens_per_s": tokens / seconds,
        "cpu_ms_per_token": 1e3 * spent / tokens,
    }


def used(server: ModelServer) -> float:
    return processes.usage(server.pid).cpu_s


def show(names: Sequence[str], streams: Sequence[int], rows: Sequence[dict[str, Any]]) -> None:
    """A line a setting and level: medians, and the geometric mean of its ratios to the first setting, round by
    round."""
    for level in streams:
        first = [row["tpot_ms"] for row in rows if (row["setting"], row["streams"]) == (names[0], level)]
        for name in names:
            mine = [row for row in rows if (row["setting"], row["streams"]) == (name, level)]
            times = [row["tpot_ms"] for row in mine]
            logs = [math.log(time / base) for time, base in zip(times, first, strict=True)]
            half = 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
            ratio, cpu = statistics.mean(logs), statistics.median(row["cpu_ms_per_token"] for row in mine)
            print(
                f"{level:3} streams  {name:24} {statistics.median(times):7.1f} ms a token  {math.exp(ratio):5.2f} "
                f"({math.exp(ratio - half):.2f} to {math.exp(ratio + half):.2f})  {cpu:7.1f} ms of processor a token"
            )
    known = processor_speed.find_measured(settings.load().cache)
    if known:
        print(
            f"The processor reads {known.speed.bandwidth / 1e9:.1f} GB/s, weights at {known.speed.weights / 1e9:.1f} "
            f"GB/s."
        )


if __name__ == "__main__":
    main()
