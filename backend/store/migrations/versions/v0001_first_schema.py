"""The first schema: jobs, events, artifacts, evaluations, supervisors"""

import sqlalchemy as sa
from alembic import op

from backend.store.tables import Aware

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("recipe", sa.String(), nullable=False),
        sa.Column("recipe_hash", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", Aware(timezone=True), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("artifacts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_artifacts_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_artifacts_model"), ["model"], unique=False)
        batch_op.create_index(batch_op.f("ix_artifacts_recipe_hash"), ["recipe_hash"], unique=False)

    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("baseline", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("created_at", Aware(timezone=True), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("evaluations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_evaluations_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_evaluations_job_id"), ["job_id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("parent", sa.String(), nullable=True),
        sa.Column("submission", sa.String(), nullable=True),
        sa.Column("rank", sa.Float(), nullable=False),
        sa.Column("exclusive", sa.Boolean(), nullable=False),
        sa.Column("lane", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("handle", sa.Text(), nullable=True),
        sa.Column("supervisor", sa.String(), nullable=True),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("progress", sa.Float(), nullable=True),
        sa.Column("eta_s", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("created_at", Aware(timezone=True), nullable=False),
        sa.Column("started_at", Aware(timezone=True), nullable=True),
        sa.Column("finished_at", Aware(timezone=True), nullable=True),
        sa.Column("event_at", Aware(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("submission"),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_created", ["created_at"], unique=False)
        batch_op.create_index("ix_jobs_state_rank", ["state", "rank"], unique=False)

    op.create_table(
        "supervisors",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_started", sa.Float(), nullable=False),
        sa.Column("heartbeat_at", Aware(timezone=True), nullable=False),
        sa.Column("stopped", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", Aware(timezone=True), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "seq"),
    )


def downgrade() -> None:
    op.drop_table("events")
    op.drop_table("supervisors")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_state_rank")
        batch_op.drop_index("ix_jobs_created")

    op.drop_table("jobs")
    with op.batch_alter_table("evaluations", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_evaluations_job_id"))
        batch_op.drop_index(batch_op.f("ix_evaluations_created_at"))

    op.drop_table("evaluations")
    with op.batch_alter_table("artifacts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_artifacts_recipe_hash"))
        batch_op.drop_index(batch_op.f("ix_artifacts_model"))
        batch_op.drop_index(batch_op.f("ix_artifacts_job_id"))

    op.drop_table("artifacts")
