"""The catalog: models of every origin with the columns that lists narrow by, and which recipes fit them where"""

import sqlalchemy as sa
from alembic import op

from backend.store.tables import Aware

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "catalog",
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", Aware(timezone=True), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("hub", sa.String(), nullable=True),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("licence", sa.String(), nullable=True),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("context", sa.Integer(), nullable=False),
        sa.Column("kv_bytes_per_token", sa.BigInteger(), nullable=False),
        sa.Column("preoptimized", sa.Boolean(), nullable=False),
        sa.Column("precompiled", sa.Boolean(), nullable=False),
        sa.Column("quantization", sa.String(), nullable=False),
        sa.Column("speculative_decoding", sa.String(), nullable=False),
        sa.Column("speculative_decoding_with_provided_draft", sa.String(), nullable=False),
        sa.Column("shape", sa.String(), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("source"),
    )
    op.create_index("ix_catalog_order", "catalog", ["rank", "position", "created_at"])
    for column in ("name", "origin", "hub", "family", "licence", "shape"):
        op.create_index(f"ix_catalog_{column}", "catalog", [column])
    op.create_table(
        "catalog_fits",
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("shape", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("target", "kind", "shape"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "catalog_planned",
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("shape", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("place", "shape"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "catalog_state",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    for table in ("catalog_state", "catalog_planned", "catalog_fits", "catalog"):
        op.drop_table(table)
