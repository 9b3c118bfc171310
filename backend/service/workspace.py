"""A workspace: the settings and the store of one home, opened once a process."""

from __future__ import annotations

from dataclasses import dataclass

from backend import settings as configuration
from backend.settings import Settings
from backend.store.database import Store, open_store


@dataclass(frozen=True)
class Workspace:
    settings: Settings
    store: Store


def open_workspace(settings: Settings | None = None) -> Workspace:
    """Open the home that the environment names. Raises StoreUnavailable."""
    chosen = settings or configuration.load()
    return Workspace(chosen, open_store(chosen))
