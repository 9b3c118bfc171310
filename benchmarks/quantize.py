"""Quantization: the native engine against llm-compressor and AutoAWQ. Same model, same calibration tokens, same
threads.

    .venv/bin/python -m benchmarks.quantize [--sizes 256,512,1024] [--methods awq,gptq,smoothquant] [--rounds 3]
    [--threads 1] .venv/bin/python -m benchmarks.quantize --model FOLDER [--group-size 64] ...

Every measurement is a fresh process under the engine's own interpreter (benchmarks/quantize_run.py); within a round the
engines take turns, every other round backwards, so that a machine that slows down slows all of them. Models of three
widths are trained once (benchmarks/quantize_models.py, minutes). Wants the `compress` environment, a quiet machine and,
at the largest size, hours:
--limit stops a run and says so, --engines leaves some out. What was measured is kept in build/quantize.json and not
measured again unless the engine's code changed or --again; the report is made of all of it, and refused where engines
saw different tokens.
Writes benchmarks/results/quantize.md. With --model that one model is taken as it is, with the text that an optimize job
calibrates it on and the held-out text that its quality is scored on, and benchmarks/results/quantize_real.md is
written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from backend import settings as configuration
from backend.catalog.text import calibration_text, held_out_text
from backend.domain.recipe import quantization_engines
from backend.domain.recipe.capability_table import capability
from backend.engines.base import QuantizeRequest
from backend.hardware import engine_status, probe
from backend.settings import CHECKOUT
from backend.worker.optimizing import calibration
from benchmarks import quantize_models as models
from benchmarks import quantize_report as report
from benchmarks.quantize_quality import WINDOWS, window_kls

RESULTS_FILE = CHECKOUT / "build" / "quantize.json"
SCRATCH = CHECKOUT / "build" / "quantize-out"
RESULTS = Path(__file__).parent / "results"
OPTIONS: dict[str, dict[str, Any]] = {
    "awq": {"bits": 4, "group_size": 128, "symmetric": False, "tuning": {"clip": True}},
    "gptq": {"bits": 4, "group_size": 128, "symmetric": True, "tuning": {"act_order": True, "clip": True}},
    "smoothquant": {"bits": 8, "symmetric": True},
}
"""`tuning` is the native engine's own default (domain/methods.py); the libraries keep theirs, activation order and,
with AutoAWQ, searched ranges among them."""
SAMPLES, LENGTH = 64, 512
GROWTH_HIDDEN = 256
GROWTH_LAYERS, GROWTH_SAMPLES = (4, 8, 16), (16, 32, 64)

Case = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    # of training and scoring here too: torch is not imported yet
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    remaining = StoredRows(arguments.again)
    subjects = (
        [real(arguments.model)] if arguments.model else [trained(hidden, arguments.steps) for hidden in arguments.sizes]
    )
    for subject in subjects:
        for method in arguments.methods:
            compare(remaining, subject, method, arguments)
    for engine in () if arguments.model else arguments.growth:
        grow(remaining, engine, arguments)
    about = {
        "hardware": probe.probe(),
        "threads": arguments.threads,
        "note": arguments.note,
        "samples": SAMPLES,
        "length": LENGTH,
        "model": arguments.model and arguments.model.name,
    }
    rows = [
        row
        for row in remaining.rows
        if row.get("sources") == sources(row["engine"]) and row.get("model") == about["model"]
    ]
    text = report.markdown(rows, about, sorted(subject.hidden for subject in subjects), arguments.methods)
    (RESULTS / ("quantize_real.md" if arguments.model else "quantize.md")).write_text(text)
    print(text)


class Subject(NamedTuple):
    """A model to quantize. `named`: what tells its figures from another model's of that width."""

    folder: Path
    hidden: int
    layers: int
    named: Case
    calibration: list[str]
    held_out: str | Sequence[held_out_text.Document] | None
    """None: the text that quantize_quality.py keeps for the models trained here."""


def trained(hidden: int, steps: int | None) -> Subject:
    folder, texts = models.trained(hidden, steps), calibration_text.texts(None)
    return Subject(folder, hidden, models.LAYERS[hidden], {"model": None, "steps": steps}, texts, None)


def real(folder: Path) -> Subject:
    config = json.loads((folder / "config.json").read_text())
    text = held_out_text.read(held_out_text.default(folder), folder).documents
    named = {"model": folder.name, "steps": None}
    return Subject(
        folder, config["hidden_size"], config["num_hidden_layers"], named, calibration.texts(None, folder), text
    )


def _arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model's folder, in place of the trained ones")
    parser.add_argument(
        "--group-size", type=int, default=128, help="of AWQ and GPTQ; it must divide the model's widths"
    )
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in words(text)], default=list(models.LAYERS))
    parser.add_argument("--methods", type=words, default=list(OPTIONS))
    parser.add_argument("--engines", type=words, default=list(quantization_engines.ENGINES))
    parser.add_argument(
        "--growth", type=words, default=["native"], help="engines whose growth is measured; empty for none"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--steps", type=int, help="that the models are trained for, where not benchmarks/quantize_models.py's"
    )
    parser.add_argument("--windows", type=int, default=WINDOWS, help="of held-out text that the KL is the mean of")
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds after which a run is stopped")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    return parser.parse_args()


class StoredRows:
    """What was measured, on disk after every run."""

    def __init__(self, again: bool) -> None:
        self.rows: list[Case] = [] if again or not RESULTS_FILE.exists() else json.loads(RESULTS_FILE.read_text())

    def find(self, case: Case) -> Case | None:
        return next((row for row in self.rows if all(row.get(name) == value for name, value in case.items())), None)

    def add(self, row: Case) -> None:
        self.rows.append(row)
        RESULTS_FILE.parent.mkdir(exist_ok=True)
        RESULTS_FILE.write_text(json.dumps(self.rows, indent=1))


def compare(remaining: StoredRows, subject: Subject, method: str, arguments: argparse.Namespace) -> None:
    """All engines that can do the method, in turns; the first round's result is scored."""
    able = [name for name in arguments.engines if capability("quantize", method, name, "cpu").supported]
    for turn in range(arguments.rounds):
        for engine in able if turn % 2 == 0 else reversed(able):
            case = (
                _case("compare", engine, method, subject.hidden, subject.layers, SAMPLES, arguments, turn)
                | subject.named
            )
            if remaining.find(case) is None:
                remaining.add(measured(case, subject, arguments, score=turn == 0))


def grow(remaining: StoredRows, engine: str, arguments: argparse.Namespace) -> None:
    """AWQ of the smallest model over layers and over tokens; the growth in width is read from the comparison."""
    for layers, samples in sorted(
        {(n, SAMPLES) for n in GROWTH_LAYERS} | {(GROWTH_LAYERS[0], n) for n in GROWTH_SAMPLES}
    ):
        subject = trained(GROWTH_HIDDEN, None)._replace(folder=models.tiled(models.trained(GROWTH_HIDDEN), layers))
        for turn in range(arguments.rounds):
            case = _case("growth", engine, "awq", GROWTH_HIDDEN, layers, samples, arguments, turn)
            if remaining.find(case) is None:
                remaining.add(measured(case, subject, arguments, score=False))


def _case(
    part: str,
    engine: str,
    method: str,
    hidden: int,
    layers: int,
    samples: int,
    arguments: argparse.Namespace,
    turn: int,
) -> Case:
    return {
        "part": part,
        "engine": engine,
        "method": method,
        "hidden": hidden,
        "layers": layers,
        "samples": samples,
        "threads": arguments.threads,
        "round": turn,
        "sources": sources(engine),
    }


@cache
def sources(engine: str) -> str:
    """Of the code that runs `engine`: what an earlier version took is no figure of this one."""
    folders = ("engines/native", "layered") if engine == "native" else ("engines/libraries",)
    files = [file for folder in folders for file in sorted((CHECKOUT / "backend" / folder).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def measured(case: Case, subject: Subject, arguments: argparse.Namespace, *, score: bool) -> Case:
    """One run: the case with what it took, or why there is no figure."""
    out = SCRATCH / hashlib.sha256(json.dumps(case).encode()).hexdigest()[:12]
    shutil.rmtree(out, ignore_errors=True)
    print(
        f"{case['part']}: {case['method']} by {case['engine']}, hidden {case['hidden']}, {case['layers']} layers, "
        f"{case['samples']} x {LENGTH} tokens, round {case['round'] + 1}",
        file=sys.stderr,
        flush=True,
    )
    run = _run(case, subject, out, arguments)
    if score and "seconds" in run:
        run["kl"], run["perplexity"], run["perplexity_original"] = window_kls(
            subject.folder, out, arguments.windows, subject.held_out
        )
    shutil.rmtree(out, ignore_errors=True)
    return {**case, **run}


def _run(case: Case, subject: Subject, out: Path, arguments: argparse.Namespace) -> Case:
    options = {**OPTIONS[case["method"]]}
    if case["engine"] != "native":
        options.pop("tuning", None)
    if "group_size" in options:
        options["group_size"] = arguments.group_size
    request = QuantizeRequest(
        model_dir=subject.folder,
        out_dir=out,
        method=case["method"],
        samples=case["samples"],
        length=LENGTH,
        seed=0,
        calibration_texts=subject.calibration,
        **options,
    )
    SCRATCH.mkdir(parents=True, exist_ok=True)
    suffix = out.with_suffix(".json")
    suffix.write_text(request.model_dump_json())
    command = [str(_python(case["engine"])), "-m", "benchmarks.quantize_run", case["engine"], str(suffix)]
    threads = {name: str(case["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(CHECKOUT)}
    log = SCRATCH / "log.txt"
    try:
        with log.open("ab") as errors:
            done = subprocess.run(
                command,
                env={**os.environ, **threads, **quiet},
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=arguments.limit,
                check=False,
                text=True,
            )
    except subprocess.TimeoutExpired:
        return {"stopped_after": arguments.limit}
    finally:
        suffix.unlink()
    if done.returncode:
        return {"failed": f"exit code {done.returncode}, see {log.relative_to(CHECKOUT)}"}
    parsed: Case = json.loads(done.stdout)
    return parsed


def _python(engine: str) -> Path:
    return engine_status.engine_python(configuration.load(), quantization_engines.environment(engine) or "studio")


if __name__ == "__main__":
    main()
