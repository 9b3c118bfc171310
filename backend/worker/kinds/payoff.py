"""Runs a payoff job: measures the steps of one target alone and with drafts of random weights, and makes the map.

Each slot (a server, a number of streams, a round) is stored as soon as it is measured, so that a resumed job continues
from there.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from backend import files
from backend import settings as configuration
from backend.catalog.cards.card import read_card
from backend.channel import JobChannel
from backend.domain.errors import WorkError
from backend.domain.evaluation.document import EvaluateOptions, Speculation, Variant
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import PayoffSpec
from backend.domain.load import counters, order
from backend.domain.load.load import Load
from backend.domain.load.records import Disturbance, LoadPlan, RequestRecord
from backend.domain.maths.intervals import factor_ci95
from backend.domain.model.facts import ModelCard
from backend.domain.needs.kv_cache_tokens import peak_tokens as cache_tokens
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import DraftProbe, DraftShape, MapKey, PayoffMap, PayoffPoint
from backend.domain.planner.roofline import tokens_per_pass
from backend.domain.workload.workload import parse_workload
from backend.engines.drafts import random_draft as random_drafts
from backend.hardware import engine_status, probe
from backend.worker.measuring import disturbance as neighbours
from backend.worker.measuring.artifact_copies import local_artifacts
from backend.worker.measuring.server_pool import Endpoint, ServerPool, ServerSetup
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

FEWEST_STEPS, STEPS_OF_ALL = 16, 192
"""Steps of a server per slot, and of all its streams together where they are few and each step is short: an answer is
as long as that many steps are expected to make it. Half a second of one stream differed by 15 % from
round to round, on a quiet machine."""
WARM_STEPS = 6


class Slot(Frozen):
    """The times of one server under one number of streams in one round, in seconds.

    `step_s` is the median time between two chunks of a stream, which is a step; `token_s` the median time per token.
    """

    step_s: float
    token_s: float
    accepted: float | None = None
    disturbance: Disturbance | None = None


class Server(NamedTuple):
    """`shape` and `probe` None: without speculation."""

    variant: Variant
    shape: DraftShape | None = None
    probe: DraftProbe | None = None

    @property
    def answer(self) -> float:
        """Tokens that a step is expected to give."""
        return tokens_per_pass(self.probe.acceptance, self.probe.tokens) if self.probe else 1.0


def run(spec: PayoffSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Measure the steps and return the payoff map as the document of the result.

    Raises ServerFailed, and WorkError if no request was answered.
    """
    settings, began = configuration.load(), time.monotonic()
    progress = ChannelProgress(channel, 2.0 + 0.5 + 6.0)
    with local_artifacts(spec.variants, settings, progress) as (target,):
        # 1. Prepare a server without speculation and one for each draft.
        card = read_card(Path(str(target.model_path)))
        servers = _servers(spec, target, card, channel.work)
        measured = SlotMeasurement(spec, servers, channel, progress)
        options = EvaluateOptions(concurrency=spec.streams, max_tokens=measured.longest)
        workload = parse_workload(Path(spec.prompts).stem, Path(spec.prompts).read_bytes())
        setup = ServerSetup(
            partial(engine_status.server_program, settings),
            channel.side_log,
            settings.cache / "vllm",
            cache_tokens(workload.prompts, options, measured.longest),
        )
        pool = ServerPool([server.variant for server in servers], options, setup, progress)

        # 2. Read versions and hardware before any server runs.
        key = draft_payoff.map_key(
            spec.revision, spec.weights, target.serving, engine_status.list_versions(settings), probe.probe()
        )

        # 3. Measure all slots.
        with pool:
            progress.phase("start", "Starting servers", weight=2.0)
            pool.start_servers()
            measured.run(pool)

    # 4. Make the map; the slots are needed until it exists.
    document = _make_map(key, target, card, measured, time.monotonic() - began)
    measured.remove_slots()
    return {"map": document.model_dump(mode="json"), "peak_rss_bytes": memory.peak, "interleave": pool.mode}


def _servers(spec: PayoffSpec, target: Variant, card: ModelCard, work: Path) -> list[Server]:
    """Return the server without speculation, then one for each probe, whose draft with random weights is written."""
    plain = target.model_copy(update={"compile_cache": None, "name": "without"})
    servers = [Server(plain)]
    for draft in spec.probes:
        folder = work / f"draft-{draft.hidden}-{draft.layers}"
        shape = random_drafts.make(folder, card, draft.hidden, draft.layers)
        speculation = Speculation(
            method="draft", tokens=draft.tokens, draft_path=str(folder), synthetic=draft.acceptance
        )
        name = f"{shape.parameters / 1e6:.1f} M at {draft.tokens}"
        servers.append(Server(plain.model_copy(update={"name": name, "speculation": speculation}), shape, draft))
    return servers


class SlotMeasurement:
    """Measures all slots, by (server, streams, round); those that an earlier attempt stored are not measured again."""

    plan_changes: ClassVar[Mapping[str, Any]] = {}
    """Fields of the load's plan that differ from plain text at temperature 0; costs do not depend on them."""

    def __init__(
        self, spec: PayoffSpec, servers: Sequence[Server], channel: JobChannel, progress: ChannelProgress
    ) -> None:
        self.spec, self.servers, self._channel, self._progress = spec, servers, channel, progress
        self._folder = channel.resume("slots")
        self.slots: dict[tuple[int, int, int], Slot] = {}
        self._warmed: dict[int, int] = {}
        self._runs = 0

    @property
    def longest(self) -> int:
        """The most tokens of an answer."""
        return max(_tokens(server, steps(streams)) for server in self.servers for streams in self.spec.streams)

    def run(self, pool: ServerPool) -> None:
        """Measure all slots: round by round if the servers are up together, else server by server."""
        schedule = order.schedule(len(self.servers), range(len(self.spec.streams)), self.spec.rounds)
        if pool.mode == "restart":
            schedule.sort(key=lambda slot: slot.variant)
        self._progress.phase("measure", "Measuring steps", total=len(schedule), unit="runs", weight=6.0)
        for done, (block, level, server) in enumerate(schedule, 1):
            place = (server, self.spec.streams[level], block)
            self.slots[place] = self._read_slot(place) or self._measure(place, pool)
            self._progress.advance(done, variant=self.servers[server].variant.name, concurrency=place[1], block=block)

    def points(self) -> Iterator[PayoffPoint]:
        """Yield a point for each server and number of streams, those without speculation first."""
        for number, server in enumerate(self.servers):
            for streams in self.spec.streams:
                # Divide each round by the same round without speculation: what disturbs both cancels out.
                own = [self.slots[number, streams, block] for block in range(self.spec.rounds)]
                plain = [self.slots[0, streams, block] for block in range(self.spec.rounds)]
                relative = [slot.step_s / base.step_s for slot, base in zip(own, plain, strict=True)]
                tokens = [slot.token_s / base.token_s for slot, base in zip(own, plain, strict=True)]
                accepted = [slot.accepted for slot in own if slot.accepted is not None]
                yield PayoffPoint(
                    streams=streams,
                    tokens=server.probe.tokens if server.probe else 0,
                    draft=server.shape,
                    step_s=statistics.geometric_mean(slot.step_s for slot in own),
                    relative=statistics.geometric_mean(relative),
                    factor=factor_ci95(relative) if server.probe else None,
                    accepted=statistics.fmean(accepted) if accepted else None,
                    token_relative=statistics.geometric_mean(tokens) if server.probe else None,
                    rounds=self.spec.rounds,
                )

    def remove_slots(self) -> None:
        """Delete the stored slots: once there is a map, no attempt goes on from them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def disturbance_warnings(self) -> list[str]:
        worst = neighbours.worst(slot.disturbance for slot in self.slots.values() if slot.disturbance)
        words = neighbours.describe(worst) if worst else None
        if words is None:
            return []
        return [f"The machine was not quiet ({words} at the worst): measure again for a narrower interval."]

    def _read_slot(self, place: tuple[int, int, int]) -> Slot | None:
        path = self._path(place)
        return Slot.model_validate_json(path.read_bytes()) if path.is_file() else None

    def _path(self, place: tuple[int, int, int]) -> Path:
        return self._folder / f"{'-'.join(map(str, place))}.json"

    def _measure(self, place: tuple[int, int, int], pool: ServerPool) -> Slot:
        """Measure one slot and store it."""
        # 1. Warm the server, and read what is compared with afterwards.
        number, streams, _ = place
        endpoint = pool.use(number)
        self._warm(number, endpoint)
        watch, before = neighbours.DisturbanceMeter(), endpoint.counters()

        # 2. Send one request per stream, and count the accepted tokens of a step.
        records = self._load(endpoint, streams, _tokens(self.servers[number], steps(streams)))
        counted = counters.counter_increase(before, endpoint.counters())
        drafts = counted.get("drafts")
        accepted = counted.get("accepted_tokens", 0) / drafts if drafts else None

        # 3. Store the slot for a later attempt.
        slot = Slot(**_times(records), accepted=accepted, disturbance=watch.disturbance())
        self._folder.mkdir(parents=True, exist_ok=True)
        files.write(self._path(place), slot.model_dump_json())
        return slot

    def _warm(self, number: int, endpoint: Endpoint) -> None:
        """Load a server that was started anew once with each number of streams.

        Afterwards the buffers and kernels of each batch size exist.
        """
        if self._warmed.get(number) != endpoint.starts:
            for streams in self.spec.streams:
                self._load(endpoint, streams, _tokens(self.servers[number], WARM_STEPS))
            self._warmed[number] = endpoint.starts

    def _load(self, endpoint: Endpoint, streams: int, tokens: int) -> list[RequestRecord]:
        """Send one request per stream at the same time, each for so many tokens."""
        from backend.evaluate.load import run_level

        # Begin where the run before ended, so that no prompt is in the server's prefix cache.
        self._runs += 1
        first = self._runs * max(self.spec.streams)
        plan = LoadPlan(
            url=endpoint.url,
            model=str(endpoint.served_name),
            prompts=self.spec.prompts,
            load=Load("closed", streams),
            requests=streams,
            warmup_requests=0,
            max_tokens=tokens,
            ignore_eos=True,
            first_line=first,
            **self.plan_changes,
        )
        return run_level(plan, self._channel.work / f"slot-{self._runs}")[0]


def steps(streams: int) -> int:
    return max(FEWEST_STEPS, STEPS_OF_ALL // (streams + 2))


def _tokens(server: Server, count: int) -> int:
    """Return the tokens of an answer that takes so many steps."""
    return 2 + round(count * server.answer)


def _times(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Return the median seconds of a step and of a token. Raises WorkError if no answer came in several chunks."""
    # 1. Take the answers that came in enough chunks.
    good = [
        record for record in records if record.ok and len(record.chunk_times) > 3 and (record.output_tokens or 0) > 1
    ]
    if not good:
        first = next((record.error for record in records if record.error), "no reason given")
        raise WorkError(f"None of {len(records)} requests was answered ({first.rstrip('.')}): see the log.")

    # 2. A step is the gap between two chunks; the first gap is left out, since prompts of other streams are read in it.
    gaps: list[float] = []
    for record in good:
        gaps += [later - earlier for earlier, later in pairwise(record.chunk_times[1:])]

    # 3. The time per token is that of the whole answer behind its first chunk.
    spans = [(record.chunk_times[-1] - record.chunk_times[0]) / _after_first(record) for record in good]
    return {"step_s": statistics.median(gaps), "token_s": statistics.median(spans)}


def _after_first(record: RequestRecord) -> float:
    """Return the tokens that came after the first chunk."""
    first = record.chunk_tokens[0] if record.chunk_tokens else 1.0
    return max(1.0, float(record.output_tokens or 0) - first)


def _make_map(key: MapKey, target: Variant, card: ModelCard, measured: SlotMeasurement, seconds: float) -> PayoffMap:
    points = tuple(measured.points())
    return PayoffMap(
        key=key,
        model=target.source,
        parameters=card.parameters,
        points=points,
        costs=draft_payoff.fit_costs(points),
        error=draft_payoff.error_factor(draft_payoff.cross_validate(points)),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        hardware=json.loads(json.dumps(probe.probe())),
        warnings=tuple(measured.disturbance_warnings()),
    )
