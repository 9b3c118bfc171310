"""The starter's draft under real vLLM: drafts are accepted at temperature 0 and at temperature 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.domain.recipe.recipe import Serving
from backend.evaluate.load import run_level
from backend.serving.vllm import VllmServer
from backend.settings import ASSETS

pytestmark = pytest.mark.vllm


def test_drafts_are_accepted_at_both_temperatures(
    tmp_path: Path, starter_target: Path, starter_draft: Path, serve_python: Path, vllm_cache: Path
) -> None:
    """At temperature 1 vLLM's CPU build as installed accepts next to nothing and answers gibberish: the plugin mends it."""
    variant = Variant(
        name="starter", source="starter", kind="model", model_path=str(starter_target), serving=Serving(enforce_eager=True),
        speculation=Speculation(method="draft", tokens=4, draft_path=str(starter_draft)),
    )  # fmt: skip
    shares = []
    with VllmServer(variant, python=serve_python, log=tmp_path / "log", cache_root=vllm_cache, kv_cache_gib=0.0625) as server:
        for temperature in (0.0, 1.0):
            before = server.metrics()
            plan = LoadPlan(
                url=server.url, model=server.served_name, load=Load("closed", 4), requests=32, warmup_requests=0, max_tokens=48,
                prompts=str(ASSETS / "workloads" / "starter-code.jsonl"), temperature=temperature,
            )  # fmt: skip
            records, _ = run_level(plan, tmp_path / f"level-{temperature}")
            assert all(record.ok for record in records)
            after = server.metrics()
            drafted, accepted = (after[name] - before.get(name, 0.0) for name in ("drafted_tokens", "accepted_tokens"))
            shares.append(accepted / drafted)
    assert min(shares) > 0.4, shares
