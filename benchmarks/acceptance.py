"""Draft acceptance of the starter pair under vLLM, on held-out prompts: accepted / drafted tokens at k=4.

    .venv/bin/python -m benchmarks.acceptance

At temperature 0 and 1, with the answers that end in a loop counted. Writes benchmarks/results/acceptance.md.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from backend import settings
from backend.cli.output import table
from backend.domain.evaluation.document import Level, Speculation, Variant
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.domain.recipe.recipe import Serving
from backend.evaluate.load import run_level
from backend.hardware import engine_status, probe
from backend.serving.vllm import VllmServer
from backend.settings import ASSETS

TOKENS = 4
REQUESTS = 128
RESULT = Path(__file__).parent / "results" / "acceptance.md"


def main() -> None:
    starter = ASSETS / "starter"
    variant = Variant(
        name="starter",
        source="starter",
        kind="model",
        model_path=str(starter / "target"),
        serving=Serving(enforce_eager=True),
        speculation=Speculation(method="draft", tokens=TOKENS, draft_path=str(starter / "draft")),
    )
    python = engine_status.engine_python(settings.load(), "serve")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with VllmServer(variant, python=python, log=scratch / "server.log", cache_root=scratch / "cache") as server:
            levels = {temperature: measure(server, temperature, scratch) for temperature in (0.0, 1.0)}
    RESULT.write_text(markdown(levels))
    print(RESULT.read_text())


def measure(server: VllmServer, temperature: float, scratch: Path) -> Level:
    plan = LoadPlan(
        url=server.url,
        model=server.served_name,
        load=Load("closed", 4),
        requests=REQUESTS,
        warmup_requests=0,
        max_tokens=64,
        prompts=str(ASSETS / "workloads" / "starter-code.jsonl"),
        temperature=temperature,
    )
    before = server.metrics()
    records, audit = run_level(plan, scratch / f"level-{temperature}")
    after = server.metrics()
    drafted, accepted = (int(after[name] - before.get(name, 0)) for name in ("drafted_tokens", "accepted_tokens"))
    return summarise_level(plan.load, [records], [audit], pricing=None, acceptance=(accepted, drafted))


def markdown(levels: dict[float, Level]) -> str:
    header = ("temperature", "accepted / drafted", "answers", "end in a loop", "errors")
    rows = [
        (temperature, level.acceptance_rate, level.requests, level.looping_outputs, level.invocation_errors)
        for temperature, level in levels.items()
    ]
    machine = probe.probe()
    version = (engine_status.read_marker(settings.load().engines, "serve") or {}).get("version")
    return (
        f"# Acceptance of the starter draft, k={TOKENS}\n\n{machine['cpu']}, {machine['cores']} cores, vLLM {version}, "
        f"{datetime.now(UTC):%Y-%m-%d}; held-out prompts of assets/workloads/starter-code.jsonl, 64 new tokens at "
        f"most.\n\n"
        f"```\n{table(header, rows)}\n```\n"
    )


if __name__ == "__main__":
    main()
