"""Every technique through the command: optimized, verified, its quality read, loaded by vLLM and held against its
reference.

    .venv/bin/python -m benchmarks.techniques [--recipes awq,fp8] [--home FOLDER] [--lock FILE]

For each bundled recipe that changes weights: `whetstone optimize starter --recipe NAME --wait --json` and `whetstone
artifacts verify`. Then vLLM's engine loads each artifact and gives the log-probabilities of held-out text and a greedy
answer, which the dequantized weights in transformers (fp32) judge. Writes benchmarks/results/techniques.md. `--home`
keeps the artifacts there, and a later run with it makes only what is missing. `--lock`: a file that is locked while
vLLM runs, where others share the machine. About 25 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from backend import service, settings
from backend.catalog.text import calibration_text
from backend.cli.output import table
from backend.domain.errors import WhetstoneError
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Prune, Quantize, Recipe
from backend.evaluate.quality import scoring
from backend.hardware import engine_status, probe
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.models import variants
from backend.service.plans import recipe_files
from backend.settings import ASSETS, Settings
from benchmarks import techniques_reference as reference
from benchmarks.techniques_vllm import Answer, answers

RESULT = Path(__file__).parent / "results" / "techniques.md"
STARTER = ASSETS / "starter" / "target"
PROMPT, ANSWER = 256, 32
"""Tokens of held-out text that are scored, and tokens that are then answered."""
BATCH = 6
"""Models that vLLM loads one after another in one process."""
HEADER = (
    "recipe",
    "engine",
    "s",
    "peak MB",
    "weights MB",
    "perplexity",
    "mean KL",
    "verified",
    "off",
    "allowed",
    "follow",
    "by vLLM",
)


class TechniqueArtifact(NamedTuple):
    """What the command printed; or why there is nothing (`error`), or why vLLM is not asked here (`unserved`)."""

    name: str
    engine: str
    document: dict[str, Any]
    verified: bool = False
    error: str = ""
    unserved: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.document["path"]) / "model"


class Judged(NamedTuple):
    """`off`: mean absolute difference of the log-probabilities from the reference's, nats, and what is `allowed` of it.
    `follow`: greedy tokens that are the reference's best."""

    off: float | None = None
    allowed: float | None = None
    follow: int | None = None
    served: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", default="")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--lock", type=Path)
    arguments = parser.parse_args()
    names = arguments.recipes.split(",") if arguments.recipes else chosen()
    with tempfile.TemporaryDirectory(prefix="whetstone-techniques-") as scratch:
        home = arguments.home or Path(scratch)
        workspace = service.open_workspace(Settings(home=home.resolve(), engines=settings.load().engines))
        try:
            text = markdown(*judge(workspace, make_all(workspace, names), arguments.lock))
        finally:
            jobs.cancel_all_and_stop(workspace)
    if not arguments.recipes:
        RESULT.write_text(text)
    print(text)


def chosen() -> list[str]:
    """The bundled recipes that change weights and do nothing else: the native engine's first, then by technique."""
    every = {name: recipe_files.read_file(Path(name)) for name in recipe_files.bundled_names()}
    mine = {n: r for n, r in every.items() if r.steps and all(isinstance(step, Prune | Quantize) for step in r.steps)}
    return sorted(mine, key=lambda name: (engine_of(mine[name]) != "native", bool(mine[name].step("prune")), name))


def engine_of(recipe: Recipe) -> str:
    return next(str(getattr(step, "engine", "native")) for step in recipe.steps)


def make_all(workspace: Workspace, names: Sequence[str]) -> list[TechniqueArtifact]:
    """One a recipe, those of an earlier run in this home as they were."""
    remaining = workspace.settings.home / "techniques.json"
    by_name = (
        {row[0]: TechniqueArtifact(*row) for row in json.loads(remaining.read_text())} if remaining.exists() else {}
    )
    for name in names:
        if name not in by_name or by_name[name].error:
            by_name[name] = make(workspace, name)
            remaining.write_text(json.dumps(list(by_name.values())))
    return [by_name[name] for name in names]


def make(workspace: Workspace, name: str) -> TechniqueArtifact:
    """Optimize and verify by the command."""
    engine = engine_of(recipe_files.read_file(Path(name)))
    try:
        document = command(workspace, "optimize", "starter", "--recipe", name, "--wait")
        verified = command(workspace, "artifacts", "verify", document["artifact"])["verified"]
    except RuntimeError as error:
        print(f"{name}: {error}", flush=True)
        return TechniqueArtifact(name, engine, {}, error=str(error))
    print(f"{name}: {document['artifact']} after {document['seconds']:.0f} s", flush=True)
    try:
        variants.check_served(workspace, [variants.resolve(workspace, document["artifact"])])
    except WhetstoneError as error:
        return TechniqueArtifact(name, engine, document, verified, unserved=str(error))
    return TechniqueArtifact(name, engine, document, verified)


def command(workspace: Workspace, *words: str) -> dict[str, Any]:
    """What `whetstone WORDS --json` prints. Raises RuntimeError with its sentence."""
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    line = [sys.executable, "-m", "backend.cli.main", *words, "--json"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def judge(
    workspace: Workspace, every: Sequence[TechniqueArtifact], lock: Path | None
) -> tuple[list[tuple[Any, ...]], float]:
    """The table's rows, and how far off vLLM's unchanged model is."""
    tokens = scoring.tokenize(STARTER, [calibration_text.HELD_OUT.read_text()])[0][:PROMPT]
    exact = reference.log_probabilities(reference.load(STARTER), tokens)
    python = engine_status.engine_python(workspace.settings, "serve")
    requests = [one for one in every if not one.error and not one.unserved]
    answered = []
    for start in range(0, len(requests), BATCH):
        folders = [created.folder for created in requests[start : start + BATCH]]
        answered += answers(python, [STARTER, *folders] if start == 0 else folders, tokens, ANSWER, lock)
    noise = reference.apart(answered[0].logged, exact)
    by_name = {
        each.name: judged(each, tokens, exact, noise, answer)
        for each, answer in zip(requests, answered[1:], strict=True)
    }
    return [row(one, by_name.get(one.name, Judged(served=one.unserved))) for one in every], noise


def judged(each: TechniqueArtifact, tokens: list[int], exact: list[float], noise: float, answer: Answer) -> Judged:
    """Allowed is twice what bfloat16 makes of the original; where inputs or the cache are 8 bits, which kernels round
    anew, what the technique itself does is added."""
    if answer.refused:
        return Judged(served=f"no: {answer.refused}")
    model = reference.load(each.folder)
    expected = reference.log_probabilities(model, tokens)
    off, allowed = reference.apart(answer.logged, expected), 2 * noise
    if rounds_anew(recipe_files.read_file(Path(each.name))):
        allowed += reference.apart(expected, exact)
    follow = reference.follows(model, tokens, answer.tokens)
    return Judged(off, allowed, follow, "yes" if off <= allowed else "differs")


def rounds_anew(recipe: Recipe) -> bool:
    step = recipe.step("quantize")
    return isinstance(step, Quantize) and (quantize_step.method_row(step).activations or quantize_step.caches_fp8(step))


def row(each: TechniqueArtifact, result: Judged) -> tuple[Any, ...]:
    if each.error:
        return (each.name, each.engine, *[None] * 9, each.error)
    document, scored = each.document, each.document["quality"]
    return (
        each.name,
        each.engine,
        document["seconds"],
        document["peak_rss_bytes"] / 1e6,
        document["bytes_after"] / 1e6,
        scored["perplexity_after"],
        scored["kl_mean"],
        "yes" if each.verified else "no",
        result.off,
        result.allowed,
        result.follow,
        result.served,
    )


def markdown(rows: list[tuple[Any, ...]], noise: float) -> str:
    machine, version = probe.probe(), (engine_status.read_marker(settings.load().engines, "serve") or {}).get("version")
    return f"""# Every technique through the command, on the starter model

{machine["cpu"]}, {machine["cores"]} cores, vLLM {version}, {datetime.now(UTC):%Y-%m-%d}.
`python -m benchmarks.techniques`: `whetstone optimize starter --recipe NAME --wait --json`, `whetstone artifacts
verify`, then vLLM's engine without compilation.

- s: the whole job, its quality report included. peak MB: of the worker and its processes.
- perplexity and mean KL (nats a token): of the artifact's own report, on held-out text.
- off: mean |difference| of the log-probabilities of {PROMPT} held-out tokens between vLLM (bfloat16) and the
  dequantized weights in fp32, nats; the unchanged model's is {noise:.3g}. allowed: twice that; where inputs or the
  cache are 8 bits, plus how far the reference is from the original, since each kernel rounds them anew.
- follow: of {ANSWER} greedy tokens, those that are the reference's best within {reference.HAIR} logits.

```
{table(HEADER, rows)}
```

{sum(row[-1] == "yes" for row in rows)} of {len(rows)} are loaded by vLLM and agree.{_left_out(rows)}
"""


def _left_out(rows: list[tuple[Any, ...]]) -> str:
    left = [name for name in chosen() if name not in {row[0] for row in rows}]
    return f" Not in this run: {', '.join(left)}." if left else ""


if __name__ == "__main__":
    main()
