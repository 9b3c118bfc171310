"""`whetstone payoff --draft`: what a trained draft pays by its own acceptance, from a map that is kept."""

from __future__ import annotations

import json
import shutil

import pytest

from backend.cli.main import main
from backend.domain.jobs.jobs import InstallSpec, JobState
from backend.domain.recipe.recipe import read
from backend.hardware import engine_status, probe
from backend.service import Workspace
from backend.service.evaluations import payoff as measuring
from backend.service.jobs import jobs
from backend.service.models import models
from backend.settings import ASSETS
from tests import payoffs, studio

TRAINED = {"asked": {"kind": "small", "tokens": 2}, "acceptance": [{"temperature": 0.0, "by_position": [0.7, 0.4]}]}


def run_payoff(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as until_then, pytest.raises(SystemExit) as ended:
        until_then.setattr("sys.argv", ["whetstone", "payoff", "starter", *words])
        main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


def test_a_trained_draft_is_predicted_by_its_own_acceptance(
    home: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))
    card, job = models.resolve(home, "starter"), jobs.submit(home, InstallSpec(engine="serve"), "any")
    drafting, looking = (
        studio.artifact(
            home, job, card, recipe=read({"name": way, "steps": [{"speculate": {"method": way}}]}), training=training
        )
        for way, training in (("draft", TRAINED), ("ngram", None))
    )
    shutil.copytree(ASSETS / "starter" / "draft", home.settings.artifacts / drafting / "draft")
    spec = measuring.prepare(home, "starter")
    key = measuring.draft_payoff.map_key(
        spec.revision, spec.weights, spec.variants[0].serving, engine_status.list_versions(home.settings), probe.probe()
    )
    remaining = payoffs.payoff_map(key, model="starter").model_dump(mode="json")
    studio.put(home, spec, "Map", JobState.SUCCEEDED, result=json.dumps({"map": remaining}))
    code, out, _ = run_payoff(capsys, "--draft", drafting, "--json")
    rows = json.loads(out)["trained"]
    assert code == 0 and [row["streams"] for row in rows] == [1, 4, 8, 16]
    assert all(row["tokens"] in (1, 2) and row["interval"][0] < row["gain"] < row["interval"][1] for row in rows)
    assert rows[0]["gain"] > rows[-1]["gain"], "it pays most for one user"
    code, out, _ = run_payoff(capsys, "--draft", drafting)
    assert code == 0 and "1.70 and 2.10 tokens" in out
    code, _, error = run_payoff(capsys, "--draft", looking)
    assert code == 2 and f"{looking} is not a draft trained for starter: give --draft" in error
