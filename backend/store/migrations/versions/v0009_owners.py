"""An index on whose jobs they are, so that one person's are counted without reading everybody's"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_jobs_owner_created", "jobs", ["owner", "created_at"])
