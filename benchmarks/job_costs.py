"""What optimize jobs take, held against the planner: processor seconds by phase and peak memory of real workers.

    .venv/bin/python -m benchmarks.job_costs [--models starter,wide,FOLDER] [--recipes w8a8,awq,...] [--out FILE]

Each job is one worker process on a channel of its own, without a supervisor. Processor seconds rather than wall time,
so that a shared machine changes them little; they are read at every change of phase. Writes
benchmarks/results/job_costs.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from backend import service
from backend.channel import Channel
from backend.cli.output import table
from backend.domain.model.facts import ModelCard
from backend.domain.needs import hardware_rates, job_duration
from backend.domain.planner import estimate
from backend.hardware import probe, processor_speed
from backend.service.models import models
from backend.service.plans import cases, optimize, recipe_files
from backend.settings import Settings
from benchmarks import wide

RESULTS = Path(__file__).parent / "results"
RECIPES = ("rtn", "w8a8", "smoothquant", "awq", "gptq", "fp8", "wanda-2-4", "sparsegpt", "mixed")
MIXED = "name: mixed\nsteps:\n  - quantize: {method: awq, target_bits: 5.0}\n"
GROUPS = {"awq", "gptq", "rtn", "mixed"}
POLL_S = 0.05
WIDE_TIMES = 16
FLOPS = 0.95e12
"""Where the processor was not probed."""
HEADER = (
    "model",
    "recipe",
    "wall s",
    "processor s",
    "of them scoring",
    "planned s",
    "",
    "peak MB",
    "planned MB",
    "ratio",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="starter,wide")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--flops", type=float, help="16-bit operations/s of the processor; measured where not given")
    parser.add_argument("--out", type=Path, default=RESULTS / "job_costs.json")
    arguments = parser.parse_args()
    flops = (
        arguments.flops or processor_speed.best_speed([processor_speed.measure(probe.cores()) for _ in range(3)]).flops
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="whetstone-jobs-") as scratch:
        workspace = service.open_workspace(Settings(home=Path(scratch) / "home"))
        for name in arguments.models.split(","):
            for recipe in arguments.recipes.split(","):
                rows.append(measured(workspace, Path(scratch), name, recipe, flops))
                print(json.dumps(rows[-1]), flush=True)
    document = {
        "processor": probe.probe()["cpu"],
        "cores": probe.cores(),
        "flops": flops,
        "load": os.getloadavg(),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(document, indent=1))
    arguments.out.with_suffix(".md").write_text(markdown(document))


def measured(workspace: service.Workspace, scratch: Path, name: str, recipe: str, flops: float) -> dict[str, Any]:
    """One job: what it took, and what the planner says of it on a processor of that rate."""
    model = models.resolve_facts(workspace, folder(scratch, name))
    assert isinstance(model, ModelCard)
    text = MIXED if recipe == "mixed" else recipe_files.write_text(recipe_files.read_file(Path(recipe)))
    chosen = recipe_files.read_text(text)
    step: Any = chosen.step("quantize")
    if recipe in GROUPS and model.hidden_size % 128:
        chosen = chosen.model_copy(update={"steps": (step.model_copy(update={"group_size": 64}),)})
    spec = optimize.prepare(workspace, cases.resolve(workspace, model, chosen)).spec
    channel = Channel(scratch / f"{Path(name).name}-{recipe}")
    channel.open(spec.model_dump_json())
    took = watched(channel)
    need = estimate.estimate_needs(model, chosen)
    runs = hardware_rates.processor_rates(flops, probe.cores(), probe.probe()["flags"])
    least, most = job_duration.job_seconds(model, chosen, runs, model.weights_bytes + need.weights_bytes)
    return {
        "model": Path(name).name,
        "parameters": model.parameters,
        "recipe": recipe,
        **took,
        "planned_s": [least, most],
        "planned_bytes": need.memory_bytes,
    }


def folder(scratch: Path, name: str) -> str:
    if name != "wide":
        return name
    if not (scratch / "wide").exists():
        wide.build(scratch / "wide", WIDE_TIMES)
    return str(scratch / "wide")


def watched(channel: Channel) -> dict[str, Any]:
    """Run the worker; processor seconds by phase, wall seconds, and the kernel's peak of resident memory."""
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "backend.worker", channel.address], stdout=subprocess.DEVNULL)
    process, phases, phase, before, observed, peak = psutil.Process(child.pid), dict[str, float](), "start", 0.0, 0, 0
    while child.poll() is None:
        try:
            used, peak = sum(process.cpu_times()[:2]), max(peak, high_water(child.pid))
        except (psutil.Error, OSError):
            break
        phases[phase] = phases.get(phase, 0.0) + used - before
        before = used
        for number, events in channel.segments(observed):
            observed = number
            phase = next((event.phase for event in reversed(events) if event.kind == "phase" and event.phase), phase)
        time.sleep(POLL_S)
    child.wait()
    result = channel.result()
    assert result is not None and result.outcome == "succeeded", result
    return {"wall_s": time.monotonic() - began, "cpu_s": before, "phases": phases, "peak_bytes": peak}


def high_water(pid: int) -> int:
    """Bytes, VmHWM of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def markdown(document: dict[str, Any]) -> str:
    rows = []
    for row in document["rows"]:
        least, most = row["planned_s"]
        rows.append(
            (
                row["model"],
                row["recipe"],
                f"{row['wall_s']:.0f}",
                f"{row['cpu_s']:.0f}",
                f"{row['phases'].get('quality', 0):.0f}",
                f"{least:.0f}",
                f"to {most:.0f}",
                f"{row['peak_bytes'] / 1e6:.0f}",
                f"{row['planned_bytes'] / 1e6:.0f}",
                f"{row['planned_bytes'] / row['peak_bytes']:.2f}",
            )
        )
    load = ", ".join(f"{value:.1f}" for value in document["load"])
    head = (
        f"# What optimize jobs take\n\n{document['processor']}, {document['cores']} cores, "
        f"{document['flops'] / 1e12:.2f} TFLOP/s in bfloat16, load average {load}. `python -m "
        f"benchmarks.job_costs`.\n\n"
    )
    return f"{head}```\n{table(HEADER, rows)}\n```\n"


if __name__ == "__main__":
    main()
