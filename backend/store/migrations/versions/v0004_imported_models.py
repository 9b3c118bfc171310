"""Models that a person has imported, so that the catalog lists them"""

import sqlalchemy as sa
from alembic import op

from backend.store.tables import Aware

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("licence", sa.String(), nullable=True),
        sa.Column("created_at", Aware(timezone=True), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("path"),
    )


def downgrade() -> None:
    op.drop_table("models")
