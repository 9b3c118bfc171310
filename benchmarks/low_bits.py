"""4 and 3 bits on a real model: the native engine beside auto-round and llm-compressor in one run.

    .venv/bin/python -m benchmarks.low_bits MODEL_FOLDER --auto-round PYTHON [--bits 4,3] [--only NAME ...]
    [--threads 1] [--steps 50] [--windows 24] [--limit 3600] [--note "..."]

PYTHON is the interpreter of an environment with Intel's `auto-round` (`pip install torch==2.13.0 auto-round==0.16.1`);
llm-compressor is that of the `compress` engine. Each result is a fresh process; all see the same calibration tokens
(checked by their sha256 where a tool says it, and given as ids to auto-round) in groups of 64 with zero points. The
rows whose scales are trained learn from further text too: half of what the bundled text holds beside those tokens. KL
is to the original on chat and prose that no calibration saw. auto-round computes in 32 bit, or in 16 as it does by
itself, and tunes each layer for `--steps` steps: 50 is its own `light` recipe, 200 its default.
Writes benchmarks/results/low_bits.md and .json after every row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend import settings as configuration
from backend.catalog.text import held_out_text
from backend.domain.errors import ModelDamaged
from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.maths.intervals import mean_ci95
from backend.engines.base import QuantizeRequest
from backend.engines.native.calibration import draw_tokens
from backend.hardware import engine_status, probe
from backend.settings import CHECKOUT
from backend.worker.optimizing import calibration
from benchmarks.quantize_quality import window_kls

RESULTS = Path(__file__).parent / "results"
PEER = Path(__file__).parent / "peers" / "auto_round_run.py"
SAMPLES, LENGTH, GROUP = 64, 512, 64
LEARNED_TUNING = {"clip": True, "awq_scales": False}
LEARNED_AFTER_AWQ = {"clip": True, "awq_scales": True}
GPTQ_TUNING = {"act_order": True, "clip": True, "awq_scales": True}
WEIGHED_TUNING = GPTQ_TUNING | {"loss_weights": True}


def _trained(batch: int, **options: Any) -> dict[str, Any]:
    return {"tuning": GPTQ_TUNING, "recover": {"minutes": 15, "batch": batch, **options}}


RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "native: GPTQ after AWQ": ("native", "gptq", {"tuning": GPTQ_TUNING}),
    "auto-round: SignRound": ("auto-round", "", {}),
    "auto-round: SignRound computed in 16 bit": ("auto-round", "", {"half": True}),
    "llm-compressor: GPTQ": ("llm-compressor", "gptq", {}),
    "native: GPTQ after AWQ, tokens weighed": ("native", "gptq", {"tuning": WEIGHED_TUNING}),
    "native: GPTQ after AWQ, scales trained": ("native", "gptq", _trained(2)),
    "native: GPTQ after AWQ, scales trained, 1 sequence a step": ("native", "gptq", _trained(1)),
    "native: GPTQ after AWQ, scales trained at 5e-4 for 8 minutes": (
        "native",
        "gptq",
        _trained(2, minutes=8, learning_rate=5e-4),
    ),
    "native: GPTQ after AWQ, tokens weighed, scales trained for 8 minutes": (
        "native",
        "gptq",
        {"tuning": WEIGHED_TUNING, "recover": {"minutes": 8, "batch": 1}},
    ),
    "native: GPTQ after AWQ, tokens weighed, weights trained for 8 minutes": (
        "native",
        "gptq",
        {"tuning": WEIGHED_TUNING, "recover": {"learn": "weights", "minutes": 8, "batch": 1}},
    ),
    "llm-compressor: AWQ": ("llm-compressor", "awq", {}),
    "native: AutoRound": ("native", "autoround", {"tuning": LEARNED_TUNING}),
    "native: AutoRound after AWQ": ("native", "autoround", {"tuning": LEARNED_AFTER_AWQ}),
    "native: AutoRound after AWQ, tokens weighed": (
        "native",
        "autoround",
        {"tuning": LEARNED_AFTER_AWQ | {"loss_weights": True}},
    ),
    **{
        f"native: AutoRound after AWQ, scales trained for {minutes} minutes": (
            "native",
            "autoround",
            {"tuning": LEARNED_AFTER_AWQ, "recover": {"minutes": minutes, "batch": 1}},
        )
        for minutes in (8, 4)
    },
}
"""Name -> tool, its method and what differs from the tool's own defaults. In this order, so that tools take turns."""

Row = dict[str, Any]


def processor() -> str:
    """Return what a row is compared on: times, and a little the KL, are those of one processor."""
    hardware = probe.probe()
    return f"{hardware['cpu']} {'with' if 'avx512f' in hardware['flags'] else 'without'} AVX-512"


def run(name: str, bits: int, arguments: argparse.Namespace, texts: list[str], folder: Path) -> Row:
    """Make one result in a process of its own; return its figures, or why there are none."""
    tool, method, options = RUNS[name]
    recover = options.get("recover")
    out, request_file = folder / "out", folder / "request.json"
    shutil.rmtree(out, ignore_errors=True)
    # 1. The request, in the form of its tool.
    request = QuantizeRequest(
        model_dir=arguments.model,
        out_dir=out,
        method=method or "gptq",  # auto-round's is drawn for its tokens alone
        bits=bits,
        group_size=GROUP,
        symmetric=False,
        samples=SAMPLES,
        length=LENGTH,
        calibration_texts=texts,
        **{name: value for name, value in options.items() if name not in ("recover", "half")},
    )
    if method == "autoround":
        request = request.model_copy(update={"tuning": {**request.tuning, "learning_steps": arguments.steps}})
    if tool == "auto-round":
        tokens = folder / "tokens.json"
        tokens.write_text(json.dumps(draw_tokens(request, SAMPLES, NoProgress()).tolist()))
        peer_request = {"model": str(arguments.model), "out": str(out), "tokens": str(tokens), "bits": bits}
        peer_request |= {"group_size": GROUP, "steps": arguments.steps, "half": options.get("half", False)}
        request_file.write_text(json.dumps(peer_request))
        command = [str(arguments.auto_round), str(PEER), str(request_file)]
    else:
        request_file.write_text(request.model_dump_json())
        python = engine_status.engine_python(configuration.load(), "studio" if tool == "native" else "compress")
        command = [str(python), "-m", "benchmarks.quantize_run", tool, str(request_file)]
        if recover is not None:
            (folder / "recover.json").write_text(json.dumps(recover))
            command.append(str(folder / "recover.json"))
    # 2. The process.
    threads = {variable: str(arguments.threads) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    path = {} if tool == "auto-round" else {"PYTHONPATH": str(CHECKOUT)}
    log = folder / "log.txt"
    row: Row = {"name": name, "tool": tool, "bits": bits, "threads": arguments.threads, "processor": processor()}
    if "AutoRound" in name or tool == "auto-round":
        row["steps"] = arguments.steps
    try:
        with log.open("wb") as errors:
            done = subprocess.run(
                command,
                env={**os.environ, **threads, **quiet, **path},
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=arguments.limit,
                check=False,
                text=True,
            )
    except subprocess.TimeoutExpired:
        return row | {"stopped_after": arguments.limit}
    if done.returncode:
        return row | {"failed": log.read_text(errors="replace").strip().splitlines()[-1][:300]}
    # 3. Its quality.
    row |= json.loads(done.stdout.splitlines()[-1])
    checkpoint = out if (out / "config.json").exists() else next(out.rglob("config.json")).parent
    documents = held_out_text.read(held_out_text.default(arguments.model), arguments.model).documents
    try:
        row["kl"], row["perplexity"], row["perplexity_original"] = window_kls(
            arguments.model, checkpoint, arguments.windows, documents
        )
    except ModelDamaged as error:
        row["failed"] = str(error)
    return row


def table(document: dict[str, Any]) -> str:
    """The results as Markdown, best first within each number of bits."""
    lines = [
        f"# 4 and 3 bits beside auto-round and llm-compressor: {document['model']}",
        "",
        f"{document['at'][:10]}, {document['hardware']}; Python {document['python']}. {_versions(document['rows'])}.",
        document["note"],
        f"Groups of {GROUP} with zero points, {SAMPLES} x {LENGTH} calibration tokens, the same for all;",
        f"{document['windows']} windows of 512 tokens of chat and prose that no calibration saw. KL in nats a token,",
        "95 % interval over windows. Seconds are of the whole call: load, calibrate, quantize, write, once. Memory is",
        "the peak above what the imports take.",
    ]
    for bits, where in sorted({(row["bits"], row["processor"]) for row in document["rows"]}, reverse=True):
        rows = [row for row in document["rows"] if (row["bits"], row["processor"]) == (bits, where)]
        lines += ["", f"## {bits} bits, {where}", ""]
        lines += ["| tool and method | mean KL (95 %) | perplexity | seconds | memory |"]
        lines += ["|---|---|---|---|---|", *map(_line, sorted(rows, key=_order)), "", *_verdict(rows)]
    return "\n".join(lines).rstrip() + "\n"


def _versions(rows: list[Row]) -> str:
    """Return the libraries of each tool: tools have environments of their own, with other versions of the same."""
    libraries: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        for name, version in row.get("versions", {}).items():
            libraries.setdefault(row["tool"], {}).setdefault(name, set()).add(version)
    return "; ".join(
        f"{tool}: {', '.join(f'{name} {_listed(versions)}' for name, versions in sorted(names.items()))}"
        for tool, names in libraries.items()
    )


def _listed(versions: set[str]) -> str:
    return " and ".join(sorted(versions))


def key(row: Row) -> tuple[Any, ...]:
    """Return what a row is the only one of: a later run takes its place."""
    return tuple(row.get(name) for name in ("name", "bits", "processor", "steps"))


def _order(row: Row) -> float:
    return sum(row["kl"]) / len(row["kl"]) if "kl" in row else float("inf")


def _name(row: Row) -> str:
    return f"{row['name']}, {row['steps']} steps a layer" if "steps" in row else str(row["name"])


def _line(row: Row) -> str:
    name = _name(row)
    if "kl" not in row:
        why = f"stopped after {row['stopped_after']:.0f} s" if "stopped_after" in row else row["failed"]
        return f"| {name} | {why} | | | |"
    low, high = mean_ci95(row["kl"]) or (float("nan"),) * 2
    perplexity = f"{row['perplexity_original']:.2f} to {row['perplexity']:.2f}"
    return (
        f"| {name} | {_order(row):.4f} ({low:.4f} to {high:.4f}) | {perplexity} | {row['seconds']:.0f} | "
        f"{row['peak_bytes'] / 1e9:.2f} GB |"
    )


def _verdict(rows: list[Row]) -> list[str]:
    """Each native row beside the best and the fastest of the others: ratio of the mean KL, difference by window, ratio
    of the time."""
    scored = [row for row in rows if "kl" in row]
    others = [row for row in scored if row["tool"] != "native"]
    if not others:
        return []
    best, fastest = min(others, key=_order), min(others, key=lambda row: row["seconds"])
    lines = []
    for row in sorted((row for row in scored if row["tool"] == "native"), key=_order):
        for other in (best,) if best is fastest else (best, fastest):
            differences = [mine - its for mine, its in zip(row["kl"], other["kl"], strict=True)]
            low, high = mean_ci95(differences) or (0.0, 0.0)
            lines.append(
                f"- {_name(row)}: {_order(row) / _order(other):.2f} of the KL of {_name(other)} (difference by "
                f"window {low:+.4f} to {high:+.4f}), {row['seconds'] / other['seconds']:.2f} of its time."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--auto-round", type=Path, help="the interpreter that has auto-round")
    parser.add_argument("--bits", type=lambda text: [int(word) for word in text.split(",")], default=[4, 3])
    parser.add_argument("--only", choices=RUNS, action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50, help="a layer, of the two that learn how to round")
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which a run is stopped")
    parser.add_argument("--note", default="", help="what else the machine did")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # of scoring here too: torch is not imported yet
    path = RESULTS / "low_bits.json"
    document: dict[str, Any] = json.loads(path.read_text()) if arguments.only and path.exists() else {"rows": []}
    document |= {
        "model": arguments.model.name,
        "at": datetime.now(UTC).isoformat(),
        "hardware": hardware_line(probe.probe()),
        "python": platform.python_version(),
        "windows": arguments.windows,
        "note": arguments.note,
    }
    texts = calibration.texts(None, arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        for bits in arguments.bits:
            for name in arguments.only or RUNS:
                began = time.monotonic()
                row = run(name, bits, arguments, texts, Path(folder))
                document["rows"] = [
                    *(earlier for earlier in document["rows"] if key(earlier) != key(row)),
                    row,
                ]
                path.write_text(json.dumps(document, indent=1))
                path.with_suffix(".md").write_text(table(document))
                print(f"{bits} bits, {_line(row)} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
