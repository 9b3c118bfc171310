"""Presets: those that come with Whetstone, those imported from a file, and a person's own"""

import sqlalchemy as sa
from alembic import op

from backend.store.tables import Aware

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "presets",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("goal", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("created_at", Aware(timezone=True), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("presets", schema=None) as batch_op:
        batch_op.create_index("ix_presets_model_goal", ["model", "goal"])
        batch_op.create_index("ix_presets_origin", ["origin"])


def downgrade() -> None:
    op.drop_table("presets")
