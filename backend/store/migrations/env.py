"""Alembic's entry: runs the migrations on the URL that `store.database` hands over."""

from alembic import context
from sqlalchemy import create_engine

from backend.store.tables import Base

connectable = create_engine(context.config.attributes["url"])
with connectable.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()
connectable.dispose()
