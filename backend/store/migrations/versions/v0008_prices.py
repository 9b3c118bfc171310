"""Prices of instances that were asked for, over the bundled snapshot"""

import sqlalchemy as sa
from alembic import op

from backend.store.tables import Aware

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "prices",
        sa.Column("instance", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("usd_per_hour", sa.Float(), nullable=False),
        sa.Column("as_of", Aware(timezone=True), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "region"),
    )


def downgrade() -> None:
    op.drop_table("prices")
