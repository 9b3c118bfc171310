"""The planner: how fast it holds a model against every instance, and how far its prediction lies from what is measured
here.

    .venv/bin/python -m benchmarks.planner [--measure]

Part 1: one model against all single and two-step recipes of this version x all 45 instances, compatibility and
estimate. Part 2: the processor is probed, and the roofline is held against benchmarks/results/headline.json (the wide
fixture, measured on this machine at another time).
With --measure also part 3: the wide fixture is built and served, and probed right before and after, so that prediction
and measurement see the same machine. A few minutes and 4 GB of memory.
Writes benchmarks/results/planner.md. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from backend import service
from backend.catalog.bundled import instances, models, published
from backend.cli.output import table
from backend.domain.evaluation.document import Level
from backend.domain.machine import instruction_sets
from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelCard
from backend.domain.planner import estimate_correction, roofline
from backend.domain.planner.roofline import ExpectedLoad, Speed
from backend.domain.recipe import recipe
from backend.domain.recipe.capability_table import supported
from backend.domain.recipe.recipe import Recipe
from backend.hardware import probe, processor_speed
from backend.service.jobs import jobs
from backend.service.plans import auto_target
from backend.settings import Settings
from benchmarks import headline, wide

RESULTS = Path(__file__).parent / "results"
MODEL = "meta-textgeneration-llama-3-8b"
RUNS = 7
LIMIT_MS = 200
PROBES = 5
WIDE_TIMES = 64
REPEATS = 2
RECIPES = {
    "wide": Recipe(),
    "w8a8": recipe.read({"steps": [{"quantize": {"method": "w8a8"}}]}),
    "w8a8 + draft k=4": recipe.read(
        {"steps": [{"quantize": {"method": "w8a8"}}, {"speculate": {"method": "draft", "draft": "auto", "tokens": 4}}]}
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    load_before = os.getloadavg()
    pairs, valid, milliseconds = planned()
    fresh = measured_now() if arguments.measure else None
    result = probed()
    text = markdown(pairs, valid, milliseconds, (result, against_headline(result)), fresh, load_before)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "planner.md").write_text(text)
    print(text)


def probed() -> processor_speed.Speed:
    return processor_speed.best_speed([processor_speed.measure(probe.cores()) for _ in range(PROBES)])


Comparison = tuple[processor_speed.Speed, list[tuple[object, ...]]]
"""The speed of the processor, and a row for each figure that was predicted from it."""


def measured_now() -> Comparison:
    """The original wide fixture served at 1, 4 and 8 streams, with the probes before and after it, against the
    prediction."""
    with tempfile.TemporaryDirectory(prefix="whetstone-planner-") as scratch:
        parameters = wide.build(Path(scratch) / "wide", WIDE_TIMES)
        workspace = service.open_workspace(Settings(home=Path(scratch) / "home"))
        before = probed()
        try:
            view = headline.measure(workspace, Path(scratch) / "wide", [], REPEATS)
        finally:
            jobs.cancel_all_and_stop(workspace)
        speed = processor_speed.best_speed([before, probed()])
    levels = [(result.name, level) for result in view.document.variants for level in result.levels]
    return speed, compared(wide_card(parameters), None, speed, levels)


def steps() -> list[dict[str, object]]:
    """Every step of the capability table."""
    results: list[dict[str, object]] = []
    for technique, method, _, _ in supported():
        options = {"method": method} if method else {}
        results.append({technique: options | ({"draft": "auto"} if method == "draft" else {})})
    return results


def planned() -> tuple[int, int, list[float]]:
    """Pairs of recipe and instance, how many are valid, and the milliseconds of each run."""
    model = published.find(MODEL)
    assert model is not None and model.draft is not None
    draft, places = published.find(model.draft), instances.load().targets()
    ordered = [[step] for step in steps()] + [list(pair) for pair in itertools.product(steps(), repeat=2)]
    recipes = [recipe.read({"steps": chosen}) for chosen in ordered]
    runs = []
    for _ in range(RUNS):
        began = time.perf_counter()
        candidates = [auto_target.make_candidates(model, chosen, draft, places, ExpectedLoad()) for chosen in recipes]
        runs.append((time.perf_counter() - began) * 1000)
    flat = [candidate for row in candidates for candidate in row]
    return len(flat), sum(candidate.estimate is not None for candidate in flat), runs


def wide_card(parameters: int) -> ModelCard:
    """The wide fixture's card (benchmarks/wide.py): the starter with its MLP tiled."""
    starter = models.card("starter")
    assert starter is not None
    wider = {
        "intermediate_size": starter.intermediate_size * WIDE_TIMES,
        "parameters": parameters,
        "weights_bytes": 2 * parameters,
    }
    return starter.model_copy(update={"id": "wide", **wider})


def against_headline(speed: processor_speed.Speed) -> list[tuple[object, ...]]:
    document = json.loads((RESULTS / "headline.json").read_text())
    levels = [(row["name"], Level.model_validate(level)) for row in document["variants"] for level in row["levels"]]
    return compared(wide_card(document["parameters"]), models.card("starter-draft"), speed, levels)


def compared(
    card: ModelCard, draft: ModelCard | None, speed: processor_speed.Speed, levels: list[tuple[str, Level]]
) -> list[tuple[object, ...]]:
    """(variant, streams, metric, predicted least, most, middle, measured, error, inside) for every level."""
    kind = instruction_sets.instruction_set(probe.probe()["flags"])
    device = Device("cpu", "cpu", 1, probe.total_memory(), speed.weights, speed.flops, measured=True, instructions=kind)
    rows: list[tuple[object, ...]] = []
    for name, level in levels:
        predicted = prediction(card, RECIPES[name], device, level, draft)
        rows += [
            line(name, level, point, predicted) for point in estimate_correction.compare_prediction(predicted, level)
        ]
    return rows


def prediction(card: ModelCard, chosen: Recipe, device: Device, level: Level, draft: ModelCard | None) -> Speed:
    step = chosen.step("speculate")
    acceptance = roofline.acceptance_from_rate(level.acceptance_rate, 4) if level.acceptance_rate else None
    load = ExpectedLoad(
        input_tokens=round(level.input_tokens or 1),
        output_tokens=round(level.output_tokens or 1),
        concurrency=level.concurrency,
    )
    scenario = roofline.make_scenario(
        card, chosen, device, 1, load, draft=draft if step else None, acceptance=acceptance
    )
    assert scenario is not None
    return roofline.speed(scenario)


def line(name: str, level: Level, point: estimate_correction.PredictionPoint, predicted: Speed) -> tuple[object, ...]:
    ends = {
        estimate_correction.TTFT: [1000 * end for end in predicted.ttft],
        estimate_correction.TPOT: [1000 * end for end in predicted.tpot],
        estimate_correction.RATE: list(predicted.output_tokens_per_s),
    }[point.metric]
    inside = "yes" if ends[0] <= point.measured <= ends[1] else "no"
    return (
        name,
        level.concurrency,
        point.metric,
        ends[0],
        ends[1],
        point.predicted,
        point.measured,
        f"{point.error:+.0%}",
        inside,
    )


def markdown(
    pairs: int,
    valid: int,
    runs: list[float],
    headline: Comparison,
    fresh: Comparison | None,
    load_before: tuple[float, float, float],
) -> str:
    facts = probe.probe()
    parts = [
        "# Planner",
        "",
        f"{facts['cpu']}, {facts['cores']} cores. `python -m benchmarks.planner{' --measure' if fresh else ''}`. "
        "The error is of the middle (geometric mean) of a range. Acceptance is the measured one.",
        f"Load average before and after: {average(load_before)}; {average(os.getloadavg())}"
        + (": the machine was shared, so all of this is slower than it can be." if max(load_before) > 1 else "."),
        "",
        "## Speed",
        "",
        f"{pairs} pairs of recipe and instance ({valid} valid and estimated): {min(runs):.0f} ms best, "
        f"{statistics.median(runs):.0f} ms median of {len(runs)} runs; the limit is {LIMIT_MS} ms.",
    ]
    if fresh:
        parts += section("Against the wide fixture measured between two probes", *fresh)
    return "\n".join(
        [*parts, *section("Against benchmarks/results/headline.json, measured at another time", *headline), ""]
    )


def average(load: tuple[float, float, float]) -> str:
    return ", ".join(f"{minutes:.2f}" for minutes in load)


def section(title: str, speed: processor_speed.Speed, rows: list[tuple[object, ...]]) -> list[str]:
    decode = next(row for row in rows if row[:3] == ("wide", 1, estimate_correction.TPOT))
    header = ("variant", "streams", "metric", "predicted from", "to", "middle", "measured", "error", "inside")
    return [
        "",
        f"## {title}",
        "",
        f"Probe: {speed.bandwidth / 1e9:.1f} GB/s read, {speed.weights / 1e9:.1f} GB/s through weights, "
        f"{speed.flops / 1e12:.2f} TFLOP/s in bfloat16. "
        f"Decoding of the original, 1 stream: {decode[5]:.1f} ms predicted, {decode[6]:.1f} ms measured, error "
        f"{decode[7]}.",
        "",
        "```",
        table(header, rows),
        "```",
    ]


if __name__ == "__main__":
    main()
