"""Speculation on a real model. Part `map`: a payoff map against drafts that it has not seen, predicted gain against
measured.

    whetstone payoff TARGET --json > map.json
    python -m benchmarks.speculation map TARGET map.json DRAFT[@TOKENS] ... [--streams 1,4,8] [--rounds 6] [--out FILE]

A DRAFT is a folder: a small model, or an EAGLE head (`--method`). The target is served alone and with each of them,
side by side where memory allows; each round loads every server at every number of streams, forwards then backwards,
with bundled chat prompts in the target's template that no draft was trained on. Predicted: the map's gain for a draft
of that size at the mean accepted tokens that the server counted, with the map's error. Measured: time a token without /
with, round by round, with its 95 % t interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

from backend import channel as form
from backend import settings
from backend.catalog.cards.card import read_card
from backend.catalog.cards.draft_head import read_head
from backend.channel import JobChannel
from backend.domain.evaluation.document import EvaluateOptions, Speculation, Variant
from backend.domain.figures import times
from backend.domain.jobs.jobs import PayoffSpec
from backend.domain.maths.intervals import factor_ci95
from backend.domain.needs.kv_cache_tokens import peak_tokens as cache_tokens
from backend.domain.planner.draft_payoff import DraftProbe, DraftShape, PayoffMap
from backend.domain.recipe.speculation import SPECULATE, KnownSpeculation
from backend.domain.workload.workload import parse_workload
from backend.hardware import engine_status, probe
from backend.present.tables.text import table
from backend.settings import ASSETS
from backend.worker.kinds.payoff import Server, SlotMeasurement
from backend.worker.measuring.server_pool import ServerPool, ServerSetup
from backend.worker.progress import ChannelProgress

PROMPTS = ASSETS / "workloads" / "assistant.jsonl"
LIKELY = 0.6
"""Acceptance by which answers are made long enough for their steps."""
GOAL = 0.1
"""Of the measured gain: how far a prediction may lie from it."""


class Real(SlotMeasurement):
    """In the target's chat template, as drafts are used."""

    plan_changes: ClassVar[Mapping[str, Any]] = {"endpoint": "chat", "temperature": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    part = parser.add_subparsers(required=True).add_parser("map")
    part.add_argument("target", type=Path)
    part.add_argument("map", type=Path, help="What `whetstone payoff --json` printed.")
    part.add_argument("drafts", nargs="+", metavar="DRAFT[@TOKENS]")
    part.add_argument("--method", default="draft", choices=sorted(get_args(KnownSpeculation)))
    part.add_argument("--streams", default="1,4,8")
    part.add_argument("--rounds", type=int, default=6)
    part.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    payoff_map = PayoffMap.model_validate(json.loads(arguments.map.read_text())["map"])
    streams = tuple(int(count) for count in arguments.streams.split(","))
    servers = [*serving(arguments.target, payoff_map, arguments.drafts, arguments.method)]
    rows = measure(servers, streams, arguments.rounds, payoff_map)
    show(rows)
    if arguments.out:
        document = {"rows": rows, "hardware": probe.probe(), "versions": engine_status.list_versions(settings.load())}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


def serving(target: Path, payoff_map: PayoffMap, drafts: Sequence[str], method: Any) -> list[Server]:
    """The target alone, then with each draft, under the map's settings."""
    plain = Variant(
        name="without", source=str(target), kind="model", model_path=str(target), serving=payoff_map.key.serving
    )
    servers = [Server(plain)]
    for written in drafts:
        folder, _, tokens = written.partition("@")
        read = read_head if SPECULATE[method].needs == "head" else read_card
        card, guessed = read(Path(folder)), int(tokens or 4)
        speculation = Speculation(method=method, tokens=guessed, draft_path=str(Path(folder).resolve()))
        called = "/".join(Path(folder).parts[-2:])
        variant = plain.model_copy(update={"name": f"{called} at {guessed}", "speculation": speculation})
        shape = DraftShape(parameters=card.parameters, layers=card.layers)
        servers.append(
            Server(
                variant,
                shape,
                DraftProbe(hidden=card.hidden_size, layers=card.layers, tokens=guessed, acceptance=LIKELY),
            )
        )
    return servers


def measure(
    servers: Sequence[Server], streams: Sequence[int], rounds: int, payoff_map: PayoffMap
) -> list[dict[str, Any]]:
    """A row for each draft and number of streams."""
    configured = settings.load()
    variants = [server.variant for server in servers]
    spec = PayoffSpec(
        variants=(variants[0],),
        probes=tuple(server.probe for server in servers if server.probe),
        streams=tuple(streams),
        rounds=rounds,
        prompts=str(PROMPTS),
        revision=payoff_map.key.model,
        weights=payoff_map.key.weights,
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in (form.EVENTS, form.WORK):
            (Path(folder) / name).mkdir()
        channel = JobChannel(Path(folder))
        progress = ChannelProgress(channel, 8.0)
        measured = Real(spec, servers, channel, progress)
        options = EvaluateOptions(concurrency=tuple(streams), max_tokens=measured.longest)
        tokens = cache_tokens(parse_workload(PROMPTS.stem, PROMPTS.read_bytes()).prompts, options, measured.longest)
        program = partial(engine_status.server_program, configured)
        setup = ServerSetup(program, channel.side_log, configured.cache / "vllm", tokens)
        with ServerPool(variants, options, setup, progress) as pool:
            pool.start_servers()
            measured.run(pool)
        return [row(measured, payoff_map, number, at) for number in range(1, len(servers)) for at in streams]


def row(measured: SlotMeasurement, payoff_map: PayoffMap, number: int, streams: int) -> dict[str, Any]:
    server, blocks = measured.servers[number], range(measured.spec.rounds)
    assert server.shape is not None and server.probe is not None
    pairs = [(measured.slots[0, streams, block], measured.slots[number, streams, block]) for block in blocks]
    gains = [plain.token_s / guessed.token_s for plain, guessed in pairs]
    accepted = statistics.fmean(own.accepted or 0.0 for _, own in pairs)
    gain, factor = statistics.geometric_mean(gains), factor_ci95(gains)
    predicted = payoff_map.gain_at(streams, server.probe.tokens, server.shape, 1 + accepted)
    return {
        "draft": server.variant.name,
        "parameters": server.shape.parameters,
        "layers": server.shape.layers,
        "streams": streams,
        "accepted": accepted,
        "predicted": predicted,
        "predicted_95": payoff_map.interval(predicted),
        "measured": gain,
        "measured_95": (gain / factor, gain * factor) if factor else None,
        "error": predicted / gain - 1,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    header = ("draft", "streams", "tokens a step", "predicted", "measured", "error")
    cells = [
        (
            row["draft"],
            row["streams"],
            f"{1 + row['accepted']:.2f}",
            times(row["predicted"], row["predicted_95"]),
            times(row["measured"], row["measured_95"]),
            f"{row['error']:+.1%}",
        )
        for row in rows
    ]
    print(table(header, cells))
    within = sum(abs(row["error"]) <= GOAL for row in rows)
    print(f"\n{within} of {len(rows)} predictions within {GOAL:.0%} of what was measured.")


if __name__ == "__main__":
    main()
