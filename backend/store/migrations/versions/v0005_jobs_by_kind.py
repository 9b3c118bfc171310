"""Indexes for the newest jobs of a kind, and for those of a title: what earlier ones took, the servers that run"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_kind_created", ["kind", "created_at"])
        batch_op.create_index("ix_jobs_kind_title_created", ["kind", "title", "created_at"])


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_kind_title_created")
        batch_op.drop_index("ix_jobs_kind_created")
