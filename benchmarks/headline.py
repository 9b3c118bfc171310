"""The headline: a model of large weight traffic, original against recipes, interleaved in one run on this machine.

    .venv/bin/python -m benchmarks.headline [--times 64] [--repeats 5]

Builds the wide fixture (benchmarks/wide.py), optimizes it by the studio's own jobs, evaluates all variants resident at
once in ABBA blocks at 1, 4 and 8 streams, and writes benchmarks/results/headline.md and headline.json. About 20 minutes
on 2 cores; needs about 12 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet

from backend import service
from backend.cli.output import table
from backend.domain.evaluation.document import Evaluation
from backend.domain.jobs.jobs import JobState
from backend.domain.load.load import Load
from backend.domain.recipe import recipe
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.service.plans import cases, optimize
from backend.settings import ASSETS, Settings
from benchmarks import wide

RESULTS = Path(__file__).parent / "results"
DRAFT = ASSETS / "starter" / "draft"
EAGER = {"enforce_eager": True}
W8A8 = {"quantize": {"method": "w8a8"}}
PRICE_PER_HOUR = 1.0
"""Any price gives the same ratio."""


def speculate(tokens: int) -> dict[str, Any]:
    return {"speculate": {"method": "draft", "draft": str(DRAFT), "tokens": tokens}}


RECIPES: list[dict[str, Any]] = [
    {"name": "w8a8", "steps": [W8A8]},
    {"name": "w8a8 + draft k=4", "steps": [W8A8, speculate(4)], "serving": EAGER},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whetstone-headline-") as scratch:
        parameters = wide.build(Path(scratch) / "wide", arguments.times)
        workspace = service.open_workspace(Settings(home=Path(scratch) / "home"))
        try:
            optimization = optimized(workspace, str(Path(scratch) / "wide"), RECIPES)
            view = measure(
                workspace,
                Path(scratch) / "wide",
                [str(job.result["artifact"]) for job in optimization],
                arguments.repeats,
            )
            qualities = {str(r["name"]): job.result["quality"] for r, job in zip(RECIPES, optimization, strict=True)}
            diverged = divergences(Path(view.path) / "records.parquet", "w8a8", "w8a8 + draft k=4")
            record(view.document, parameters, diverged, qualities)
        finally:
            jobs.cancel_all_and_stop(workspace)


def optimized(workspace: Workspace, model: str, documents: list[dict[str, Any]]) -> list[JobView]:
    card = models.resolve(workspace, model)
    chosen = (cases.resolve(workspace, card, recipe.read(document)) for document in documents)
    return [finished(workspace, optimize.submit(workspace, optimize.prepare(workspace, case))) for case in chosen]


def measure(workspace: Workspace, model: Path, created: list[str], repeats: int) -> evaluations.EvaluationView:
    options = evaluations.read_options(
        concurrency=(1, 4, 8),
        repeats=repeats,
        warmup_requests=1,
        max_tokens=48,
        price_per_hour=PRICE_PER_HOUR,
        quality=False,
        interleave="resident",
    )
    spec = evaluations.prepare(workspace, [str(model), *created], options)
    ended = finished(workspace, evaluations.submit(workspace, spec))
    return evaluations.show(workspace, str(ended.result["evaluation"]))


def finished(workspace: Workspace, job: JobView) -> JobView:
    ended = jobs.wait(workspace, job.id)
    if ended.state is not JobState.SUCCEEDED:
        raise SystemExit(f"{ended.title}: {ended.error}\n{jobs.logs(workspace, job.id, tail_bytes=4000)}")
    print(f"{ended.title}: done", flush=True)
    return ended


def divergences(records: Path, reference: str, variant: str) -> dict[str, float]:
    """First divergences from the reference's greedy answers, one stream: how many, of how many generated tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(wide.STARTER)
    texts: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    for row in pyarrow.parquet.read_table(records).to_pylist():
        if row["load"] == "closed-1" and not row["warm"] and row["status"] == "ok":
            texts[row["variant"]][row["block"], row["index"]] = row["text"]
    pairs = [(texts[reference][key], texts[variant][key]) for key in texts[reference] if key in texts[variant]]
    encoded = [[tokenizer(text, add_special_tokens=False)["input_ids"] for text in pair] for pair in pairs]
    tokens = sum(len(answer) for _, answer in encoded)
    diverged = sum(a != b for a, b in encoded)
    return {"answers": len(pairs), "diverged": diverged, "tokens": tokens, "share": diverged / max(tokens, 1)}


def record(document: Evaluation, parameters: int, diverged: dict[str, float], qualities: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = markdown(document, parameters, diverged, qualities)
    (RESULTS / "headline.md").write_text(text)
    remaining = document.model_dump(
        mode="json", exclude={"variants": {"__all__": {"variant"}}, "options": {"workload"}}
    )
    (RESULTS / "headline.json").write_text(
        json.dumps({**remaining, "divergences": diverged, "qualities": qualities, "parameters": parameters}, indent=1)
    )
    print(text)


def markdown(document: Evaluation, parameters: int, diverged: dict[str, float], qualities: dict[str, Any]) -> str:
    rows = []
    for result in document.variants:
        for level in result.levels:
            price = level.price.per_million_output if level.price else None
            ratio = ratio_of(document, result.name, level.load)
            rows.append(
                (result.name, level.concurrency, level.output_tokens_per_s, ratio, price, level.acceptance_rate)
            )
    header = ("variant", "streams", "output tok/s", "x original (95 %)", "price/M out at 1/h", "acceptance")
    quality = [(name, q["perplexity_before"], q["perplexity_after"], q["kl_mean"]) for name, q in qualities.items()]
    hardware, versions = document.hardware, document.versions
    return "\n".join(
        [
            "# Headline (synthetic best case: wide fixture, draft 1/400 of the target)",
            "",
            f"{parameters / 1e6:.0f} M parameters, {hardware.get('cpu')}, {hardware.get('cores')} cores; "
            f"{', '.join(f'{k} {v}' for k, v in versions.items())}; {document.measured_at}; "
            f"{document.options.repeats} blocks, "
            f"{document.interleave}, greedy, {document.options.max_tokens} new tokens. `python -m "
            f"benchmarks.headline`.",
            "",
            "```",
            table(header, rows),
            "",
            table(("variant", "perplexity of the original", "perplexity", "mean KL"), quality),
            "",
            f"first divergences of `w8a8 + draft k=4` from `w8a8`: {diverged['diverged']:.0f} in "
            f"{diverged['tokens']:.0f} generated "
            f"tokens ({diverged['share']:.2%})",
            *[f"warning: {w}" for w in document.warnings],
            "```",
            "",
        ]
    )


def ratio_of(document: Evaluation, variant: str, load: Load) -> str:
    for row in document.comparison:
        if (row.variant, row.load, row.metric) == (variant, load, "output_tokens_per_s") and row.ratio:
            spread = f" ({row.ci95[0]:.2f} to {row.ci95[1]:.2f})" if row.ci95 else ""
            return f"{row.ratio:.2f}{spread}"
    return "1"


if __name__ == "__main__":
    main()
