"""A payoff job goes on from the slots that an earlier attempt kept, and writes drafts of the size that it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from backend import channel as form
from backend.channel import JobChannel
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.jobs import PayoffSpec
from backend.domain.jobs.progress import NoProgress
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import DraftProbe, DraftShape
from backend.engines.drafts import random_draft as random_drafts
from backend.worker.kinds.payoff import Server, Slot, SlotMeasurement
from backend.worker.measuring.server_pool import ServerPool, ServerSetup
from backend.worker.progress import ChannelProgress
from tests.payoffs import TARGET

PROBE = DraftProbe(hidden=64, layers=2, tokens=3, acceptance=0.5)
PLAIN = Variant(name="without", source="m", kind="model", model_path="/m")


def test_a_resumed_job_measures_no_slot_again(tmp_path: Path) -> None:
    channel = JobChannel(tmp_path)
    for name in (form.EVENTS, form.WORK):
        (tmp_path / name).mkdir()
    spec = PayoffSpec(
        variants=(PLAIN,), probes=(PROBE,), streams=(1, 4), rounds=3, prompts="none.jsonl", revision="r", weights="w"
    )
    servers = [
        Server(PLAIN),
        Server(PLAIN.model_copy(update={"name": "drafted"}), DraftShape(parameters=10**6, layers=2), PROBE),
    ]
    resumed = channel.resume("slots")
    resumed.mkdir(parents=True, exist_ok=True)
    for server in (0, 1):
        for streams in (1, 4):
            for block in range(3):
                slot = Slot(
                    step_s=0.01 * (1 + server) * (1 + 0.01 * block), token_s=0.01, accepted=0.875 if server else None
                )
                (resumed / f"{server}-{streams}-{block}.json").write_text(slot.model_dump_json())
    progress = ChannelProgress(channel, 1.0)
    measured = SlotMeasurement(spec, servers, channel, progress)
    never_started = ServerPool(
        [server.variant for server in servers],
        EvaluateOptions(),
        ServerSetup(lambda _: Path(sys.executable), channel.side_log, tmp_path),
        NoProgress(),
    )
    measured.run(never_started)
    points = list(measured.points())
    assert [(each.streams, each.tokens, each.accepted) for each in points] == [
        (1, 0, None),
        (4, 0, None),
        (1, 3, 0.875),
        (4, 3, 0.875),
    ]
    assert (
        points[2].relative == pytest.approx(2)
        and points[2].factor == pytest.approx(1)
        and points[2].token_relative == 1
    )
    assert points[0].relative == 1 and points[0].factor is None
    assert draft_payoff.fit_costs(points).step(1, 3, DraftShape(parameters=10**6, layers=2)) == pytest.approx(
        2 * points[0].step_s, rel=0.01
    )


def test_a_random_draft_has_the_size_that_is_said_and_the_targets_tokenizer(tmp_path: Path) -> None:
    from safetensors import safe_open

    source = tmp_path / "target"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 512}))
    (source / "tokenizer.json").write_text("{}")
    target = TARGET.model_copy(update={"path": str(source), "vocabulary": 512})
    shape = random_drafts.make(tmp_path / "draft", target, 64, 2)
    with safe_open(tmp_path / "draft" / "model.safetensors", "pt") as weights:
        assert sum(weights.get_tensor(name).numel() for name in weights.keys()) == shape.parameters  # noqa: SIM118
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"], config["eos_token_id"], shape.layers) == (512, 2, 2, 2)
    assert (tmp_path / "draft" / "tokenizer.json").read_text() == "{}"
