"""The losses by which a draft is taught, at equal time: each trains one on the same answers of the target.

    .venv/bin/python -m benchmarks.draft_losses TARGET [--kind eagle3] [--minutes 10] [--seconds 120] [--work DIR]
    [--out FILE]

The target answers the bundled prompts for 45 % of `--minutes`, once (into `--work`, where a later run finds them). Then
each arm has `--seconds` for its training, looks at acceptance included, on one thread: as many arms at a time as there
are cores. The first loss is an arm once more, with another seed: what arms differ by that are the same. Acceptance is
that of the kept weights, by vLLM's rule, on answers that were set aside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from backend import settings
from backend.catalog.text import training_prompts
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.draft_training import KINDS, LOSS_TITLES, DraftKind, LossName, Training
from backend.engines.drafts import train
from backend.engines.drafts.target import Target
from backend.engines.drafts.train import TrainRequest, learn, make_proposer
from backend.engines.drafts.training_data import Gathering, TrainingData
from backend.hardware import engine_status, probe
from backend.present.tables.text import table

LOSSES: tuple[LossName, ...] = ("lk_hybrid", "kl", "rkl", "jsd", "tv", "ce", "nla")
SEEDS = 2
"""Of the first loss."""
CHECKS = 3
"""Looks at acceptance: fewer than a training has, so that most of the time is training."""
KEY = "losses"


class Arm(NamedTuple):
    loss: LossName
    seed: int


class PrintedProgress(NoProgress):
    def __init__(self, arm: Arm) -> None:
        self.arm = arm

    def point(self, **data: Any) -> None:
        lengths = " ".join(f"{measured['length']:.3f}" for measured in data["acceptance"])
        print(
            f"{self.arm.loss} {self.arm.seed}: step {data['step']}, {data['seconds']:.0f} s, tokens a round {lengths}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="eagle3")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as created:
        work = (arguments.work or Path(created)).resolve()
        data = gathered(arguments.target, arguments.kind, arguments.minutes, work)[2]
        arms = [Arm(LOSSES[0], seed) for seed in range(SEEDS)] + [Arm(loss, 0) for loss in LOSSES[1:]]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            running = [
                pool.submit(trained, arguments.target, arguments.kind, arguments.minutes, arguments.seconds, work, arm)
                for arm in arms
            ]
            rows = [future.result() for future in running]
    show(rows, data.facts)
    if arguments.out:
        versions = engine_status.list_versions(settings.load())
        document = {
            "kind": arguments.kind,
            "seconds": arguments.seconds,
            "data": data.facts,
            "rows": rows,
            "hardware": probe.probe(),
        }
        arguments.out.write_text(json.dumps({**document, "versions": versions}, indent=1) + "\n")


def gathered(folder: Path, kind: DraftKind, minutes: float, work: Path) -> tuple[Target, tuple[str, ...], TrainingData]:
    target, options = Target(folder), Training(kind=kind, minutes=minutes)
    texts = training_prompts.read(None, folder).texts
    gathering = Gathering(make_proposer(target, options), texts, work / kind, KEY, training_prompts.is_held_out)
    return target, texts, gathering.run(NoProgress())


def trained(folder: Path, kind: DraftKind, minutes: float, seconds: float, work: Path, arm: Arm) -> dict[str, Any]:
    """In a process of its own."""
    import torch

    torch.set_num_threads(1)
    train.CHECKS = CHECKS
    target, texts, data = gathered(folder, kind, minutes, work)
    options = Training(kind=kind, loss=arm.loss, minutes=seconds / 60, seed=arm.seed)
    with tempfile.TemporaryDirectory() as created:
        out = Path(created) / "draft"
        out.mkdir()
        request = TrainRequest(target_dir=folder, out_dir=out, options=options, prompts=texts, work_dir=Path(created))
        learned = learn(request, make_proposer(target, options), data._replace(seconds=0.0), KEY, PrintedProgress(arm))
    lengths = {f"{measured.temperature:g}": measured.length for measured in learned.acceptance}
    return {
        "loss": arm.loss,
        "seed": arm.seed,
        "lengths": lengths,
        "steps": learned.steps,
        "best_step": learned.best_step,
        "stopped": learned.stopped,
        "seconds": learned.seconds["training"],
        "first": {f"{measured.temperature:g}": measured.by_position[0] for measured in learned.acceptance},
    }


def show(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    temperatures = sorted(rows[0]["lengths"])
    header = (
        "loss",
        "seed",
        *(f"tokens a round at {temperature}" for temperature in temperatures),
        "steps",
        "kept",
        "ended by",
        "seconds",
    )
    cells = [
        (
            LOSS_TITLES[row["loss"]],
            row["seed"],
            *(f"{row['lengths'][temperature]:.3f}" for temperature in temperatures),
            row["steps"],
            row["best_step"],
            row["stopped"],
            f"{row['seconds']:.0f}",
        )
        for row in sorted(rows, key=lambda row: -statistics.fmean(row["lengths"].values()))
    ]
    print(f"{facts['answers']} answers, {facts['tokens']:,} tokens.\n")
    print(table(header, cells))


if __name__ == "__main__":
    main()
