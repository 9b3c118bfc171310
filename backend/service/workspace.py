"""A workspace: the settings and the store of one home, opened once a process. A demonstration's can only be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from backend import settings as configuration
from backend.domain.errors import ReadOnly
from backend.domain.jobs.demonstration import MARK, Demonstration
from backend.settings import Settings
from backend.store.database import PATIENCE_S, Store, open_store


@dataclass(frozen=True)
class Workspace:
    """`demonstration` says what a read-only home shows; None in a home of one's own."""

    settings: Settings
    store: Store
    demonstration: Demonstration | None = None

    @property
    def read_only(self) -> bool:
        return self.demonstration is not None

    def check_writable(self) -> None:
        """For changes that are not made through the store. Raises ReadOnly."""
        if self.read_only:
            raise ReadOnly


class ReadOnlyStore(Store):
    """Every change in this house is made in a `session()`, so this is where a demonstration refuses them all."""

    def session(self) -> NoReturn:
        """Raises ReadOnly."""
        raise ReadOnly


def open_workspace(settings: Settings | None = None, *, patience_s: float = PATIENCE_S) -> Workspace:
    """Open the home that the environment names. `patience_s`: seconds that a change waits for another's.

    Raises StoreUnavailable.
    """
    chosen = settings or configuration.load()
    store = open_store(chosen, patience_s=patience_s)
    mark = chosen.home / MARK
    if not mark.is_file():
        return Workspace(chosen, store)
    return Workspace(chosen, ReadOnlyStore(store.engine), Demonstration.model_validate_json(mark.read_bytes()))
