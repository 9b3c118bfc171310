"""The schema: jobs and their events, artifacts, evaluations, supervisors, models, the catalog, presets, prices

It bears the number of the last of eight that led here before the first release, so that the homes of those days open as
they are.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from backend.store.tables import Aware

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None


def _columns(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=True) for name in names]


def _append_only(table: str) -> None:
    """Have the database refuse to change or delete a row of it, whoever asks."""
    refusal = f"{table} is append-only"
    if op.get_bind().dialect.name == "sqlite":
        for what in ("UPDATE", "DELETE"):
            refuse = f"BEFORE {what} ON {table} BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            op.execute(f"CREATE TRIGGER {table}_no_{what.lower()} {refuse}")
        return
    body = f"BEGIN RAISE EXCEPTION '{refusal}'; END"
    op.execute(f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    refuse = f"BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} EXECUTE FUNCTION {table}_append_only()"
    op.execute(f"CREATE TRIGGER {table}_append_only {refuse}")


def upgrade() -> None:
    op.create_table(
        "artifacts",
        *_columns(sa.String(), "id", "job_id", "owner", "model", "recipe", "recipe_hash", "path"),
        *_columns(sa.BigInteger(), "bytes"),
        *_columns(Aware(timezone=True), "created_at"),
        *_columns(sa.Text(), "manifest"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_artifacts_created", "artifacts", ["created_at"])
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id"])
    op.create_index("ix_artifacts_model_created", "artifacts", ["model", "created_at"])
    op.create_index("ix_artifacts_owner", "artifacts", ["owner"])
    op.create_index("ix_artifacts_recipe_hash", "artifacts", ["recipe_hash"])
    op.create_table(
        "audit",
        *_columns(sa.Integer(), "id"),
        *_columns(Aware(timezone=True), "at"),
        *_columns(sa.String(), "who", "role", "origin", "action", "kind", "target"),
        *_optional(sa.Text(), "detail"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_target", "audit", ["target"])
    op.create_index("ix_audit_who_id", "audit", ["who", "id"])
    _append_only("audit")
    op.create_table(
        "catalog",
        *_columns(sa.String(), "source", "name", "origin"),
        *_columns(sa.Integer(), "rank", "position"),
        *_columns(Aware(timezone=True), "created_at"),
        *_columns(sa.Text(), "words"),
        *_optional(sa.String(), "hub"),
        *_columns(sa.String(), "family"),
        *_optional(sa.String(), "licence"),
        *_columns(sa.BigInteger(), "parameters"),
        *_columns(sa.Integer(), "context"),
        *_columns(sa.BigInteger(), "kv_bytes_per_token"),
        *_columns(sa.Boolean(), "preoptimized", "precompiled"),
        *_columns(
            sa.String(), "quantization", "speculative_decoding", "speculative_decoding_with_provided_draft", "shape"
        ),
        *_columns(sa.Text(), "card"),
        sa.PrimaryKeyConstraint("source"),
    )
    op.create_index("ix_catalog_family", "catalog", ["family"])
    op.create_index("ix_catalog_hub", "catalog", ["hub"])
    op.create_index("ix_catalog_licence", "catalog", ["licence"])
    op.create_index("ix_catalog_name", "catalog", ["name"])
    op.create_index("ix_catalog_order", "catalog", ["rank", "position", "created_at"])
    op.create_index("ix_catalog_origin", "catalog", ["origin"])
    op.create_index("ix_catalog_shape", "catalog", ["shape"])
    op.create_table(
        "catalog_fits",
        *_columns(sa.String(), "target", "kind", "shape"),
        sa.PrimaryKeyConstraint("target", "kind", "shape"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "catalog_planned",
        *_columns(sa.String(), "place", "shape"),
        sa.PrimaryKeyConstraint("place", "shape"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "catalog_state",
        *_columns(sa.String(), "name", "value"),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "evaluations",
        *_columns(sa.String(), "id", "job_id", "owner", "title", "baseline", "path"),
        *_columns(Aware(timezone=True), "created_at"),
        *_columns(sa.Text(), "document"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_evaluations_baseline_created", "evaluations", ["baseline", "created_at"])
    op.create_index("ix_evaluations_created_at", "evaluations", ["created_at"])
    op.create_index("ix_evaluations_job_id", "evaluations", ["job_id"])
    op.create_table(
        "jobs",
        *_columns(sa.String(), "id", "kind", "state", "title", "owner"),
        *_columns(sa.Text(), "spec"),
        *_optional(sa.String(), "parent", "submission"),
        *_columns(sa.Float(), "rank"),
        *_columns(sa.Boolean(), "yields", "aside", "cancel_requested"),
        *_columns(sa.String(), "claim"),
        *_columns(sa.Text(), "terms"),
        *_columns(sa.Integer(), "attempt", "retried", "strikes"),
        *_optional(sa.Text(), "handle"),
        *_optional(sa.String(), "after", "supervisor", "cause", "ending", "host", "home"),
        *_columns(sa.Integer(), "segment", "token"),
        *_optional(sa.String(), "phase"),
        *_optional(sa.Text(), "message"),
        *_optional(sa.Float(), "progress", "eta_s"),
        *_optional(sa.Text(), "error", "result"),
        *_columns(Aware(timezone=True), "created_at"),
        *_optional(
            Aware(timezone=True), "lease_until", "started_at", "finished_at", "event_at", "not_before", "queue_until"
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("submission"),
    )
    op.create_index("ix_jobs_after", "jobs", ["after"])
    op.create_index("ix_jobs_created", "jobs", ["created_at"])
    op.create_index("ix_jobs_kind_created", "jobs", ["kind", "created_at"])
    op.create_index("ix_jobs_kind_title_created", "jobs", ["kind", "title", "created_at"])
    op.create_index("ix_jobs_queue", "jobs", ["state", "yields", "claim", "rank"])
    op.create_index("ix_jobs_queue_until", "jobs", ["queue_until"])
    op.create_table(
        "models",
        *_columns(sa.String(), "path", "name", "owner"),
        *_optional(sa.String(), "licence"),
        *_columns(Aware(timezone=True), "created_at"),
        *_columns(sa.Text(), "card"),
        sa.PrimaryKeyConstraint("path"),
    )
    op.create_table(
        "presets",
        *_columns(sa.String(), "id", "model", "goal", "origin", "target", "hash", "owner"),
        *_columns(sa.Integer(), "rank"),
        *_columns(Aware(timezone=True), "created_at"),
        *_columns(sa.Text(), "document"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_presets_model_goal", "presets", ["model", "goal"])
    op.create_index("ix_presets_origin", "presets", ["origin"])
    op.create_table(
        "prices",
        *_columns(sa.String(), "instance", "region"),
        *_columns(sa.Float(), "usd_per_hour"),
        *_columns(Aware(timezone=True), "as_of"),
        *_columns(sa.String(), "source"),
        sa.PrimaryKeyConstraint("instance", "region", "as_of"),
    )
    op.create_table(
        "supervisors",
        *_columns(sa.String(), "id", "host", "home", "process_started"),
        *_columns(sa.Integer(), "pid"),
        *_columns(Aware(timezone=True), "heartbeat_at"),
        *_columns(sa.Boolean(), "stopped", "draining"),
        *_columns(sa.Text(), "capacity"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "claims",
        *_columns(sa.String(), "host", "device", "job_id"),
        sa.PrimaryKeyConstraint("host", "device"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
    )
    op.create_index("ix_claims_job_id", "claims", ["job_id"])
    op.create_table(
        "events",
        *_columns(sa.Integer(), "id"),
        *_columns(sa.String(), "job_id"),
        *_columns(sa.Integer(), "seq"),
        *_columns(sa.String(), "kind"),
        *_columns(Aware(timezone=True), "at"),
        *_columns(sa.Text(), "document"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "seq"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
    )
    op.create_index("ix_events_job_kind_seq", "events", ["job_id", "kind", "seq"])
    _contents()


def _contents() -> None:
    op.create_table(
        "contents",
        *_columns(sa.String(), "address", "place", "identity"),
        *_columns(sa.BigInteger(), "size"),
        *_columns(sa.String(), "job_id"),
        *_columns(sa.Boolean(), "arrived"),
        *_columns(Aware(timezone=True), "held_at"),
        *_optional(Aware(timezone=True), "removed_at"),
        sa.PrimaryKeyConstraint("address"),
    )
    op.create_index("ix_contents_identity", "contents", ["place", "identity"])
    op.create_table(
        "artifact_contents",
        *_columns(sa.String(), "artifact_id", "address"),
        sa.PrimaryKeyConstraint("artifact_id", "address"),
        sa.ForeignKeyConstraint(["artifact_id"], ["artifacts.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["address"], ["contents.address"]),
    )
    op.create_index("ix_artifact_contents_address", "artifact_contents", ["address"])
    op.create_table(
        "artifact_uses",
        *_columns(sa.String(), "artifact_id", "job_id"),
        sa.PrimaryKeyConstraint("artifact_id", "job_id"),
        sa.ForeignKeyConstraint(["artifact_id"], ["artifacts.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
    )
