"""What scoring the quality of a model takes, and how that grows with the vocabulary: processor and wall seconds, kernel
apart.

    .venv/bin/python -m benchmarks.quality_scoring [--windows N] [--model FOLDER --candidate FOLDER]

Without a model: random Llamas of hidden size 576 and two layers at vocabularies of 49,152, 131,072 and 262,144, each
against another of the same shape. Each pair is scored twice: first, then with the original's states kept. `comparing`
is what turns both models' logits into figures, as it is and by the definitions in double precision. `parts` are the
steps of the first scoring, one by one. Prints JSON, a line a pair.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.catalog.text import held_out_text
from backend.domain.jobs.progress import NoProgress
from backend.evaluate.quality import divergence, model_logits, scoring
from backend.evaluate.quality.model_logits import ScoringPlace
from backend.layered.matrix_products import fast_products
from tests.tiny import tiny_llama

VOCABULARIES = (49_152, 131_072, 262_144)
ROWS = 64
LENGTH = 512


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of this process: user, kernel, wall."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return {"user_s": round(user, 2), "kernel_s": round(kernel, 2), "wall_s": round(time.monotonic() - began, 2)}


def scored(original: Path, candidate: Path, windows: int, path: Path) -> dict[str, Any]:
    documents, place = held_out_text.read("code", original).documents, ScoringPlace(cache=path)

    def score() -> None:
        scoring.score(original, candidate, documents, windows=windows, progress=NoProgress(), place=place)

    return {"first": timed(score), "again": timed(score)}


def parts(original: Path, candidate: Path, windows: int) -> dict[str, dict[str, float]]:
    """Each step of scoring that pair on its own; reading the text and opening the models come before."""
    import torch

    values: dict[str, dict[str, float]] = {}
    tokens = scoring.window_tokens(original, held_out_text.read("code", original).documents, LENGTH, windows)
    models = {
        name: model_logits.open_model(folder, model_logits.DEFAULT_PLACE, print)
        for name, folder in (("original", original), ("candidate", candidate))
    }
    left: dict[str, torch.Tensor] = {}
    with tempfile.TemporaryDirectory() as work, fast_products():
        for name, model in models.items():
            values[f"layers of the {name}"] = timed(
                lambda name=name, model=model: left.update({name: _left(model, tokens, work)})
            )
        with models["original"].head() as head:
            rows = [
                (number, slice(start, start + ROWS)) for number in range(windows) for start in range(0, LENGTH, ROWS)
            ]
            values["one head"] = timed(lambda: [head(left["original"], *row) for row in rows])
            first, second = (head(left[name], *rows[0]) for name in models)
        comparer = divergence.LogitComparer(first.shape[-1], first.device)
        targets = tokens[0][: len(first)]
        values["comparing"] = timed(lambda: [comparer.positions(first, second, targets) for _ in rows])
    return values


def _left(model: model_logits.ScoredModel, tokens: Any, work: str) -> Any:
    return model.run(tokens, Path(work), lambda _: None).clone()


def comparing(vocabulary: int) -> dict[str, Any]:
    """Of ROWS positions, as it is and in double precision."""
    import torch

    reference = torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    inputs = reference, reference + 0.1, torch.zeros(ROWS, dtype=torch.long)
    comparer = divergence.LogitComparer(vocabulary, reference.device)
    return {
        "fp32": timed(lambda: comparer.positions(*inputs)),
        "double": timed(lambda: divergence.positions_in_doubles(*inputs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--candidate", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.model:
            pair = [arguments.model, arguments.candidate]
            whole = scored(pair[0], pair[1], arguments.windows, folder / "kept")
            print(
                json.dumps(
                    {"model": arguments.model.name, **whole, "parts": parts(pair[0], pair[1], arguments.windows)}
                )
            )
            return
        for vocabulary in VOCABULARIES:
            shape: dict[str, Any] = {
                "hidden": 576,
                "heads": 9,
                "kv_heads": 3,
                "intermediate": 1536,
                "vocabulary": vocabulary,
            }
            pair = [tiny_llama(folder / f"{vocabulary}-{seed}", seed=seed, **shape) for seed in (0, 1)]
            values = {
                **scored(pair[0], pair[1], arguments.windows, folder / "kept"),
                "comparing": comparing(vocabulary),
            }
            values["parts"] = parts(pair[0], pair[1], arguments.windows)
            print(json.dumps({"vocabulary": vocabulary, **values}), flush=True)


if __name__ == "__main__":
    main()
