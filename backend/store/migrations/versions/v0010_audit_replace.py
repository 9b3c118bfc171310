"""The audit trail refuses a record in place of another: SQLite's INSERT OR REPLACE deletes without asking triggers of
DELETE

PostgreSQL has a trigger of UPDATE of the whole statement, which INSERT ... ON CONFLICT DO UPDATE sets off too.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    # NEW.id is -1 where SQLite is to choose one (https://www.sqlite.org/lang_createtrigger.html), so no record may have
    # that id.
    refuse = "BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END"
    there = "NEW.id IS NOT -1 AND EXISTS (SELECT 1 FROM audit WHERE id = NEW.id)"
    op.execute(f"CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit WHEN {there} {refuse}")
    op.execute(f"CREATE TRIGGER audit_no_odd_id AFTER INSERT ON audit WHEN NEW.id < 1 {refuse}")
