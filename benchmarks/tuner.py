"""How far a search's choice is from the best of its space, and whether it ever passes a budget or a bound.

    python -m benchmarks.tuner simulate [--worlds 20] [--tight 200]
    WHETSTONE_HOME=HOME python -m benchmarks.tuner grid MODEL [--concurrency 1,4] [--blocks 3]
    python -m benchmarks.tuner replay [--grid FILE] [--seeds 20] [--tight 200]

`grid` measures every stack of the space once, four at a time beside the original, and appends a line for each batch to
benchmarks/results/tuner_grid.jsonl; it goes on where it was interrupted. `replay` runs the search itself over the
recorded figures, with the recorded spread and times, and compares its choice with the grid's best and its time with the
grid's.
`simulate` does the same in made-up worlds, whose truth is known. Both write benchmarks/results/tuner.md.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from math import log
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from backend import service
from backend.domain.evaluation.document import VariantResult
from backend.domain.limits.quality_loss import known_loss
from backend.domain.limits.slo import Slo
from backend.domain.tuning import ranking, search
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.search import Make, Measure, Progress
from backend.domain.tuning.stacks import ORIGINAL, SpaceChoice, Stack
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs, supervisors
from backend.service.models import models
from backend.service.plans import optimize
from backend.service.tuning import sampler, space, tunings
from tests.helpers import simulated_search
from tests.helpers.simulated_search import BASELINE, STACKS, Truth, World

RESULTS = Path(__file__).parent / "results"
GRID = RESULTS / "tuner_grid.jsonl"
MAX_KL = 0.03
UNKNOWN_KL = 9.0
"""In place of a divergence that was not measured, which no floor allows."""
BLOCKS = 3
"""Of each stack in a grid."""
NEAR, SHARE, OF_TWENTY = 0.97, 0.2, 18
"""Goals: of the best score, of the grid's time, in so many of twenty searches."""


def grid_seconds(request: TuneRequest, world: World, blocks: int) -> float:
    """Return what measuring every stack once takes in the world: weights, starts and blocks, four at a time."""
    stacks = world.stacks
    progress = Progress(baseline=BASELINE, stacks=stacks)
    batches = [stacks[place : place + search.BATCH] for place in range(0, len(stacks), search.BATCH)]
    steps: list[Make | Measure] = [Make(weights=name) for name in {stack.weights for stack in stacks} - {ORIGINAL}]
    steps += [Measure(kind="halve", stacks=batch, blocks=blocks) for batch in batches]
    return sum(simulated_search.true_seconds(request, progress, world, step) for step in steps)


def compare(
    worlds: Sequence[World], request: TuneRequest, share: float, blocks: int
) -> tuple[list[float], list[float]]:
    """Run a search in each world with that share of the grid's time; return the score of its choice over the best, and
    its time over the grid's."""
    scores, shares = [], []
    for seed, world in enumerate(worlds):
        whole = grid_seconds(request, world, blocks)
        seeded = request.model_copy(update={"budget_min": whole * share / 60, "seed": seed})
        ended = simulated_search.run(seeded, world, random.Random(seed), sampler.order_stacks)
        head = ranking.rank(ended.progress.trials, seeded, baseline=BASELINE.key)[0]
        allowed = [stack.key for stack in (BASELINE, *world.stacks) if world.truth[stack.key].kl <= MAX_KL]
        best = max(simulated_search.true_score(world, seeded, key) for key in allowed)
        chosen = simulated_search.true_score(world, seeded, head.trial.key) if head.standing == "winner" else 0.0
        scores.append(chosen / best)
        shares.append(ended.progress.spent_s / whole)
    return scores, shares


def count_violations(worlds: Sequence[World], number: int) -> dict[str, int]:
    """Run searches with tight budgets and limits; count what must never happen."""
    counts = dict.fromkeys(("over the budget", "over the disk", "winner over a limit", "without a reason"), 0)
    for seed in range(number):
        rng = random.Random(1000 + seed)
        world = worlds[seed % len(worlds)]._replace(slowness=rng.choice((0.5, 1.0, 2.0, 4.0)))
        limits = rng.choice((Slo(), Slo(ttft_ms=60.0), Slo(ttft_ms=150.0, tpot_ms=40.0)))
        request = TuneRequest(
            model="m", budget_min=rng.choice((3.0, 6.0, 12.0)), disk_gb=0.2, limits=limits, max_kl=MAX_KL, seed=seed
        )
        progress = simulated_search.run(request, world, rng, sampler.order_stacks).progress
        ranked = ranking.rank(progress.trials, request, baseline=BASELINE.key)
        winner = next((one for one in ranked if one.standing == "winner"), None)
        counts["over the budget"] += progress.spent_s > 60 * request.budget_min + 1e-6
        counts["over the disk"] += progress.spent_bytes > request.disk_gb * 1e9 + 10**8
        counts["winner over a limit"] += winner is not None and bool(ranking.find_misses(winner.trial, request))
        counts["without a reason"] += not all(one.words for one in ranked)
    return counts


def read_world(lines: Sequence[dict[str, Any]]) -> World:
    """Return the world of a recorded grid: tokens/s at the least streams, how they grow with streams, quality, the
    spread of a block's ratio to the original, and what steps took.

    Its stacks are those that were recorded. A stack's speed is its ratio to the original of the same batch times the
    original's mean over all batches, since a machine is not always alike.
    """
    request = TuneRequest(model="m", streams=tuple(int(streams) for streams in lines[0]["stacks"][0]["tokens_per_s"]))
    stacks = {stack.key: stack for stack in (BASELINE, *STACKS)}
    truth: dict[str, Truth] = {}
    seconds, guessed, squares, count, makes = 0.0, 0.0, 0.0, 0, dict[str, float]()
    for batch in lines:
        # 1. What the stacks did.
        for line in batch["stacks"]:
            rates = {int(streams): rate for streams, rate in line["tokens_per_s"].items()}
            for streams in rates:
                originals = [one["stacks"][0]["tokens_per_s"][str(streams)] for one in lines]
                rates[streams] *= geometric_mean(originals) / batch["stacks"][0]["tokens_per_s"][str(streams)]
            low, high = min(rates), max(rates)
            scaling = log(rates[high] / rates[low]) / log(high / low) if high > low else 0.5
            truth[line["key"]] = Truth(
                rates[low] / low**scaling, scaling, UNKNOWN_KL if line["kl"] is None else line["kl"]
            )
            for streams, blocks in line["blocks"].items() if line is not batch["stacks"][0] else ():
                pairs = zip(blocks, batch["stacks"][0]["blocks"][streams], strict=True)
                logs = [log(rate / original) for rate, original in pairs]
                alone = len(logs) / batch["blocks"]  # requests of a block that were timed one by one
                squares += sum((one - fmean(logs)) ** 2 for one in logs) / (len(logs) - 1) / alone
                count += 1
        # 2. What it took, and what the first guesses say of it.
        measured = tuple(stacks[line["key"]] for line in batch["stacks"][1:])
        step = Measure(kind="halve", stacks=measured, blocks=batch["blocks"])
        seconds += batch["seconds"]
        guessed += search.seconds_of(request, Progress(baseline=BASELINE, stacks=STACKS), step)
        makes |= batch["makes"]
    return World(truth, slowness=seconds / guessed, noise=(squares / count) ** 0.5, makes=makes)


def measure_grid(options: argparse.Namespace) -> None:
    """Measure what the file does not have yet, batch by batch."""
    workspace = service.open_workspace()
    model = optimize.require_weights(models.resolve(workspace, options.model))
    baseline, stacks, _ = space.find_stacks(workspace, model, SpaceChoice())
    request = TuneRequest(model=options.model, streams=tuple(map(int, options.concurrency.split(","))))
    record = tunings.prepare(workspace, request)
    lines = _read(options.grid)
    done = {stack["key"] for batch in lines for stack in batch["stacks"]}
    artifacts = {name: artifact for batch in lines for name, artifact in batch["artifacts"].items()}
    open_stacks = [stack for stack in stacks if stack.key not in done]
    for place in range(0, len(open_stacks), search.BATCH):
        # 1. Weights that are not made yet.
        batch, new, makes = open_stacks[place : place + search.BATCH], dict[str, str](), dict[str, float]()
        for weights in sorted({stack.weights for stack in batch} - {ORIGINAL, *artifacts}):
            began = time.monotonic()
            job = tunings.submit_make(workspace, record, weights, f"grid-{weights}")
            supervisors.ensure_running(workspace)
            new[weights] = str(jobs.require_success(jobs.wait(workspace, job.id)).result["artifact"])
            makes[weights] = round(time.monotonic() - began, 1)
        artifacts |= new
        # 2. The batch beside the original.
        sources = [stack.source(record.model_path, artifacts) for stack in (baseline, *batch)]
        spec = evaluations.prepare(
            workspace, sources, tunings.round_options(request, "screen", options.blocks), anyway=True
        )
        began = time.monotonic()
        job = evaluations.submit(workspace, spec)
        supervisors.ensure_running(workspace)
        ended = jobs.require_success(jobs.wait(workspace, job.id))
        document = evaluations.show(workspace, str(ended.result["evaluation"])).document
        line = {
            "measured_at": document.measured_at,
            "cpu": document.hardware.get("cpu"),
            "versions": document.versions,
            "blocks": options.blocks,
            "seconds": round(time.monotonic() - began, 1),
            "makes": makes,
            "artifacts": new,
            "stacks": [
                _stack_line(stack, result) for stack, result in zip((baseline, *batch), document.variants, strict=True)
            ],
        }
        with options.grid.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{place + len(batch)} of {len(open_stacks)}: {line['seconds']:.0f} s, made {makes}", flush=True)


def _stack_line(stack: Stack, result: VariantResult) -> dict[str, Any]:
    rates = {
        level.concurrency: round(level.output_tokens_per_s, 2) for level in result.levels if level.output_tokens_per_s
    }
    blocks = {
        level.concurrency: [round(block["output_tokens_per_s"], 2) for block in level.blocks] for level in result.levels
    }
    return {
        "key": stack.key,
        "name": stack.name,
        "tokens_per_s": rates,
        "blocks": blocks,
        "kl": known_loss(result),
        "ready_s": result.ready_seconds,
    }


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def report(title: str, worlds: Sequence[World], tight: int, blocks: int) -> str:
    """Return the comparison and the violations as text. `blocks`: of each stack in the grid."""
    request = TuneRequest(model="m", max_kl=MAX_KL)
    scores, shares = compare(worlds, request, SHARE, blocks)
    half, _ = compare(worlds, request, 0.5, blocks)
    near = sum(score >= NEAR for score in scores)
    outcome = "met" if near * 20 >= OF_TWENTY * len(scores) else "MISSED"
    violations = count_violations(worlds, tight)
    return "\n".join(
        [
            f"## {title}",
            "",
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. {len(worlds[0].stacks)} stacks; a search has {SHARE:.0%} of the "
            f"time that measuring all of them takes ({grid_seconds(request, worlds[0], blocks) / 60:.0f} minutes, "
            f"{blocks} blocks each).",
            "",
            f"- Goal: the choice within 3 % of the best in {OF_TWENTY} of 20. {near} of {len(scores)}: {outcome}. Mean "
            f"{fmean(scores):.3f}, least {min(scores):.3f} of the best; mean time {fmean(shares):.0%} of the grid's.",
            f"- With half of the grid's time: {sum(score >= NEAR for score in half)} of {len(half)}, mean "
            f"{fmean(half):.3f}, least {min(half):.3f}.",
            f"- {tight} searches with tight budgets and limits: "
            + ", ".join(f"{count} {name}" for name, count in violations.items())
            + ".",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    simulate = parts.add_parser("simulate")
    simulate.add_argument("--worlds", type=int, default=20)
    simulate.add_argument("--tight", type=int, default=200)
    grid = parts.add_parser("grid")
    grid.add_argument("model")
    grid.add_argument("--concurrency", default="1,4")
    grid.add_argument("--blocks", type=int, default=BLOCKS)
    grid.add_argument("--grid", type=Path, default=GRID)
    replay = parts.add_parser("replay")
    replay.add_argument("--grid", type=Path, default=GRID)
    replay.add_argument("--seeds", type=int, default=20)
    replay.add_argument("--tight", type=int, default=200)
    options = parser.parse_args()
    if options.part == "grid":
        measure_grid(options)
        return
    if options.part == "replay":
        lines = _read(options.grid)
        if not lines:
            parser.error(f"{options.grid} has no recorded stacks: run `grid` first")
        worlds = [read_world(lines)] * options.seeds
        stacks = {stack["key"] for batch in lines for stack in batch["stacks"]}
        blocks = min(batch["blocks"] for batch in lines)
        title = f"Over {len(stacks)} recorded stacks of {lines[0]['cpu']}"
    else:
        worlds = [simulated_search.make_world(random.Random(seed)) for seed in range(options.worlds)]
        blocks = BLOCKS
        title = f"In {options.worlds} made-up worlds"
    text = report(title, worlds, options.tight, blocks)
    page = RESULTS / "tuner.md"
    earlier = page.read_text() if page.is_file() else "# Searches for the best stack\n"
    parts_ = [part for part in earlier.split("\n## ")[1:] if part[:4] != title[:4]]
    page.write_text(
        "# Searches for the best stack\n" + "".join(f"\n## {part.rstrip()}\n" for part in parts_) + f"\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
