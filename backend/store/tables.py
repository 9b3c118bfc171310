"""The tables, on a registry of their own so that a hot reload of the studio never meets "Table is already defined".

Documents (specifications, results, manifests, evaluations) are JSON text: they are read whole and never queried inside.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Index, Text, TypeDecorator, UniqueConstraint
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel


class Aware(TypeDecorator[datetime]):
    """UTC and aware on every database: SQLite drops the offset, PostgreSQL keeps it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def now() -> datetime:
    return datetime.now(UTC)


class Base(SQLModel, registry=registry()):
    """Every table derives from this one."""


class JobRow(Base, table=True):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_queue", "state", "yields", "claim", "rank"),
        Index("ix_jobs_queue_until", "queue_until"),
        Index("ix_jobs_created", "created_at"),
        Index("ix_jobs_owner_created", "owner", "created_at"),
        Index("ix_jobs_kind_created", "kind", "created_at"),
        Index("ix_jobs_kind_title_created", "kind", "title", "created_at"),
    )

    id: str = Field(primary_key=True)
    kind: str
    state: str
    title: str
    owner: str
    spec: str = Field(sa_type=Text)
    parent: str | None = None
    submission: str | None = Field(default=None, unique=True)
    """A key the submitter chose: the same key twice is one job, so that a double click is one job."""
    rank: float = 0.0
    """Queue order, lowest first (`domain.jobs.terms.queue_rank`); `move to front` goes below the lowest."""
    yields: bool = False
    """It waits behind every job that does not, and makes room for one: the starter demo of a first run."""
    claim: str = "{}"
    """The resources that it takes of a host (`domain.jobs.claims.Claim`)."""
    terms: str = Field(default="{}", sa_type=Text)
    """The limits and retries that a person set (`domain.jobs.terms.Terms`)."""
    after: str | None = Field(default=None, index=True)
    """The job that must succeed first, whose result this one names."""
    attempt: int = 1
    retried: int = 0
    """The number of automatic retries since a person last asked for it."""
    strikes: int = 0
    """Attempts in a row that ended a worker or a supervisor."""
    aside: bool = False
    """Put aside after too many of them, until somebody releases it."""
    not_before: datetime | None = Field(default=None, sa_type=Aware)
    """It is tried again then."""
    queue_until: datetime | None = Field(default=None, sa_type=Aware)
    """It must have started by then."""
    pinned_host: str | None = None
    """The only host that may run it; None: any."""
    cancel_requested: bool = False
    cause: str | None = None
    """The person or rule that asked for the cancel."""
    ending: str | None = None
    """Why the latest attempt ended without success, or is about to (`domain.jobs.endings.Ending`)."""
    handle: str | None = Field(default=None, sa_type=Text)
    supervisor: str | None = None
    host: str | None = None
    """The host that this attempt runs on; `home` is the home that its channel is in."""
    home: str | None = None
    token: int = 0
    """The lease's fencing token: it grows with every owner."""
    lease_until: datetime | None = Field(default=None, sa_type=Aware)
    segment: int = 0
    """Last event segment carried from the channel."""
    phase: str | None = None
    message: str | None = Field(default=None, sa_type=Text)
    progress: float | None = None
    eta_s: float | None = None
    error: str | None = Field(default=None, sa_type=Text)
    result: str | None = Field(default=None, sa_type=Text)
    created_at: datetime = Field(default_factory=now, sa_type=Aware)
    started_at: datetime | None = Field(default=None, sa_type=Aware)
    finished_at: datetime | None = Field(default=None, sa_type=Aware)
    event_at: datetime | None = Field(default=None, sa_type=Aware)


class ClaimRow(Base, table=True):
    """A unit of a host that a live job has (`domain.jobs.claims`)."""

    __tablename__ = "claims"

    host: str = Field(primary_key=True)
    device: str = Field(primary_key=True)
    job_id: str = Field(foreign_key="jobs.id", index=True)


class EventRow(Base, table=True):
    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("job_id", "seq"), Index("ix_events_job_kind_seq", "job_id", "kind", "seq"))

    id: int | None = Field(default=None, primary_key=True)
    job_id: str = Field(foreign_key="jobs.id")
    seq: int
    kind: str
    at: datetime = Field(sa_type=Aware)
    document: str = Field(sa_type=Text)


class ArtifactRow(Base, table=True):
    __tablename__ = "artifacts"
    __table_args__ = (
        Index("ix_artifacts_model_created", "model", "created_at"),
        Index("ix_artifacts_created", "created_at"),
    )

    id: str = Field(primary_key=True)
    job_id: str = Field(index=True)
    owner: str = Field(default="", index=True)
    """The owner of the job that made it."""
    model: str
    recipe: str
    recipe_hash: str = Field(index=True)
    path: str
    bytes: int = Field(sa_type=BigInteger)
    created_at: datetime = Field(default_factory=now, sa_type=Aware)
    manifest: str = Field(sa_type=Text)


class ContentRow(Base, table=True):
    """A content at an address in a place of artifacts; each address is used once (`store.artifact_contents`)."""

    __tablename__ = "contents"
    __table_args__ = (Index("ix_contents_identity", "place", "identity"),)

    address: str = Field(primary_key=True)
    place: str
    identity: str
    """The SHA-256 of a file in a bucket; the artifact's id of a folder."""
    size: int = Field(sa_type=BigInteger)
    job_id: str
    """The job that held it last: while that one lives, nobody takes it away."""
    arrived: bool = False
    held_at: datetime = Field(sa_type=Aware)
    removed_at: datetime | None = Field(default=None, sa_type=Aware)
    """The moment at which it was given up; the address is never used again."""


class ArtifactContentRow(Base, table=True):
    """An artifact names a content."""

    __tablename__ = "artifact_contents"

    artifact_id: str = Field(primary_key=True, foreign_key="artifacts.id", ondelete="CASCADE")
    address: str = Field(primary_key=True, foreign_key="contents.address", index=True)


class ArtifactUseRow(Base, table=True):
    """A job names an artifact, other than as its result."""

    __tablename__ = "artifact_uses"

    artifact_id: str = Field(primary_key=True, foreign_key="artifacts.id", ondelete="CASCADE")
    job_id: str = Field(primary_key=True, foreign_key="jobs.id")


class EvaluationRow(Base, table=True):
    __tablename__ = "evaluations"
    __table_args__ = (Index("ix_evaluations_baseline_created", "baseline", "created_at"),)

    id: str = Field(primary_key=True)
    job_id: str = Field(index=True)
    owner: str = ""
    """The owner of the job that made it."""
    title: str
    baseline: str
    path: str
    created_at: datetime = Field(default_factory=now, sa_type=Aware, index=True)
    document: str = Field(sa_type=Text)


class ModelRow(Base, table=True):
    """An imported model: its folder, and the card as it was read then."""

    __tablename__ = "models"

    path: str = Field(primary_key=True)
    name: str
    owner: str
    licence: str | None = None
    created_at: datetime = Field(default_factory=now, sa_type=Aware)
    card: str = Field(sa_type=Text)


class PriceRow(Base, table=True):
    """An instance's hourly price in a region, as AWS published it when it was asked for: one row for each time."""

    __tablename__ = "prices"

    instance: str = Field(primary_key=True)
    region: str = Field(primary_key=True)
    as_of: datetime = Field(sa_type=Aware, primary_key=True)
    usd_per_hour: float
    source: str


class CatalogRow(Base, table=True):
    """A model of the catalog, of whatever origin: what lists narrow and sort by, and the card as it is known.

    `source` is what a person writes for it: the id of a bundled model, else its folder. `rank` and `position` are the
    catalog's own order, `words` what a search looks through, `shape` what the rules depend on (domain.catalog).
    """

    __tablename__ = "catalog"
    __table_args__ = (Index("ix_catalog_order", "rank", "position", "created_at"),)

    source: str = Field(primary_key=True)
    name: str = Field(index=True)
    origin: str = Field(index=True)
    rank: int
    position: int = 0
    created_at: datetime = Field(default_factory=now, sa_type=Aware)
    words: str = Field(sa_type=Text)
    hub: str | None = Field(default=None, index=True)
    """The hub id in small letters."""
    family: str = Field(index=True)
    licence: str | None = Field(default=None, index=True)
    parameters: int = Field(sa_type=BigInteger)
    context: int
    kv_bytes_per_token: int = Field(sa_type=BigInteger)
    preoptimized: bool = False
    precompiled: bool = False
    quantization: str = ""
    """The published cells: Yes, No or blank, and blank where no page lists the model."""
    speculative_decoding: str = ""
    speculative_decoding_with_provided_draft: str = ""
    shape: str = Field(index=True)
    card: str = Field(sa_type=Text)


class FitRow(Base, table=True):
    """A recipe of this kind is valid for models of this shape on this target; there is no row where it is not."""

    __tablename__ = "catalog_fits"

    target: str = Field(primary_key=True)
    kind: str = Field(primary_key=True)
    shape: str = Field(primary_key=True)


class PlannedRow(Base, table=True):
    """The fits of this shape were worked out for this place: all instances, or a machine's own hardware."""

    __tablename__ = "catalog_planned"

    place: str = Field(primary_key=True)
    shape: str = Field(primary_key=True)


class CatalogStateRow(Base, table=True):
    """The version from which rows were made (`store.sync_state`): `bundled` and `presets` are hashes of data files,
    `planner` is one of the rules."""

    __tablename__ = "catalog_state"

    name: str = Field(primary_key=True)
    value: str


class PresetRow(Base, table=True):
    """A preset: bundled ones follow the file by content hash, the others are a person's."""

    __tablename__ = "presets"
    __table_args__ = (Index("ix_presets_model_goal", "model", "goal"), Index("ix_presets_origin", "origin"))

    id: str = Field(primary_key=True)
    model: str
    goal: str
    origin: str
    target: str
    hash: str
    owner: str = ""
    """The person who saved or imported it; empty for a bundled one."""
    rank: int = 0
    """Place in the file for a bundled one, so that lists keep its order; 0 for the others, which come first, latest
    first."""
    created_at: datetime = Field(default_factory=now, sa_type=Aware)
    document: str = Field(sa_type=Text)


class GatewayKeyRow(Base, table=True):
    """A key of a client of the gateway: its hash, never the key itself."""

    __tablename__ = "gateway_keys"

    name: str = Field(primary_key=True)
    digest: str = Field(unique=True)
    """SHA-256 of the key, in hex."""
    requests_per_minute: int | None = None
    """None is no limit."""
    owner: str
    """The person who added it."""
    created_at: datetime = Field(default_factory=now, sa_type=Aware)


class EndpointRow(Base, table=True):
    """An endpoint of one host: what it serves, whether it is to run, and the job that runs it now or ran it last.

    Supervisors of its host see to it that it has a live job while it is to run (`store.serving.endpoint_rows`).
    """

    __tablename__ = "endpoints"
    __table_args__ = (UniqueConstraint("host", "port"),)

    name: str = Field(primary_key=True)
    stamp: str
    """Random text that tells it from an earlier endpoint with its name."""
    source: str
    spec: str = Field(sa_type=Text)
    """The specification of its jobs (`domain.jobs.jobs.EndpointSpec`)."""
    owner: str
    host: str
    port: int
    to_run: bool = True
    """A person wants it to run."""
    job_id: str | None = None
    generation: int = 0
    """The number of jobs that it had."""
    crashes: int = 0
    """Jobs in a row that ended soon without being asked to."""
    not_before: datetime | None = Field(default=None, sa_type=Aware)
    """Its next job is submitted then."""
    reason: str | None = Field(default=None, sa_type=Text)
    """Why it is given up, until a person starts it again; None while it is not."""
    restarts: int = 0
    """Jobs of earlier ones that were replaced, and servers within them, since a person started it."""
    loads: int = 0
    """Loads of its server by jobs that have ended, since a person started it; the next columns are of these jobs
    too."""
    requests: int = 0
    failed_requests: int = 0
    loaded_s: float = 0.0
    created_at: datetime = Field(default_factory=now, sa_type=Aware)
    started_at: datetime = Field(default_factory=now, sa_type=Aware)
    """When a person started it last."""


class AuditRow(Base, table=True):
    """A change: who made it, from where, what it was and of what. The database itself refuses to change or delete a
    row."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_who_id", "who", "id"),)

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(default_factory=now, sa_type=Aware)
    who: str
    role: str
    origin: str
    """`page`, `command line` or `supervisor`."""
    action: str
    kind: str
    target: str = Field(index=True)
    detail: str | None = Field(default=None, sa_type=Text)


class SupervisorRow(Base, table=True):
    __tablename__ = "supervisors"

    id: str = Field(primary_key=True)
    host: str
    home: str
    pid: int
    process_started: str
    """The value of `processes.start_stamp`."""
    heartbeat_at: datetime = Field(default_factory=now, sa_type=Aware)
    stopped: bool = False
    draining: bool = False
    """It takes no new jobs, and ends when it has none."""
    capacity: str = Field(default="{}", sa_type=Text)
    """The resources of its host (`domain.jobs.claims.Capacity`)."""
