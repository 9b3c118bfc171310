"""Indexes for the lists that screens show newest first, so that they take the same time with ten times the rows"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("artifacts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_artifacts_model"))
        batch_op.create_index("ix_artifacts_model_created", ["model", "created_at"])
        batch_op.create_index("ix_artifacts_created", ["created_at"])
    with op.batch_alter_table("evaluations", schema=None) as batch_op:
        batch_op.create_index("ix_evaluations_baseline_created", ["baseline", "created_at"])
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_job_kind_seq", ["job_id", "kind", "seq"])


def downgrade() -> None:
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index("ix_events_job_kind_seq")
    with op.batch_alter_table("evaluations", schema=None) as batch_op:
        batch_op.drop_index("ix_evaluations_baseline_created")
    with op.batch_alter_table("artifacts", schema=None) as batch_op:
        batch_op.drop_index("ix_artifacts_created")
        batch_op.drop_index("ix_artifacts_model_created")
        batch_op.create_index(batch_op.f("ix_artifacts_model"), ["model"], unique=False)
