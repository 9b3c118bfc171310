"""Endpoints of this studio's machines, and jobs that only one host may run"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.store.tables import Aware

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("pinned_host", sa.String(), nullable=True))
    op.create_table(
        "endpoints",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("stamp", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("to_run", sa.Boolean(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("not_before", Aware(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("loads", sa.Integer(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("failed_requests", sa.Integer(), nullable=False),
        sa.Column("loaded_s", sa.Float(), nullable=False),
        sa.Column("created_at", Aware(timezone=True), nullable=False),
        sa.Column("started_at", Aware(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("host", "port"),
    )
