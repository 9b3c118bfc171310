"""A workspace: the settings and the store of one home, and the actor. A demonstration's can only be read.

Every change goes through `Workspace.change`, which checks the actor's role and leaves a record in the audit trail in
the same transaction; `check` is for refusing early, before any work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from backend import settings as configuration
from backend.domain import roles
from backend.domain.errors import NotAllowed, ReadOnly, RequestError
from backend.domain.jobs.demonstration import MARK, Demonstration
from backend.domain.roles import RULES, Action, Actor, Role
from backend.settings import Settings
from backend.store import audit
from backend.store.database import PATIENCE_S, Store, open_store

T = TypeVar("T")


@dataclass(frozen=True)
class Workspace:
    """`demonstration` says what a read-only home shows; None in a home of one's own."""

    settings: Settings
    store: Store
    demonstration: Demonstration | None = None
    actor: Actor = field(default_factory=lambda: Actor(name="local"))

    @property
    def read_only(self) -> bool:
        return self.demonstration is not None

    def acting_as(self, actor: Actor) -> Workspace:
        """Return the workspace with another actor."""
        return replace(self, actor=actor)

    def at_discount(self, share: float) -> Workspace:
        """Return the workspace with another discount, 0 to 1, off every published price per hour."""
        return replace(self, settings=self.settings.model_copy(update={"discount": share}))

    def in_region(self, region: str) -> Workspace:
        """Return the workspace with the prices of that AWS region alone."""
        return replace(self, settings=self.settings.model_copy(update={"price_region": region}))

    def refusal(self, action: Action, owner: str | None = None) -> str | None:
        """Return why the actor may not do that, in one sentence; None if they may. `owner` owns what would be
        changed."""
        return str(ReadOnly()) if self.read_only else roles.refusal(self.actor, action, owner)

    def check(self, action: Action, owner: str | None = None) -> None:
        """Refuse early, before any work, or for actions that do not change the store. Raises ReadOnly, NotAllowed."""
        why = self.refusal(action, owner)
        if why is not None:
            raise ReadOnly if self.read_only else NotAllowed(why)

    def change(
        self,
        action: Action,
        target: str,
        work: Callable[[Any], T],
        *,
        detail: str | None = None,
        changed: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Run `work` in a short write transaction and record it, if the actor may do that to the target.

        `changed` tells whether the result of `work` is a change at all. Raises ReadOnly, NotAllowed and what `work`
        raises.
        """
        # 1. Refuse by role, before the database is touched.
        self.check(action)

        # 2. In one transaction: check the owner, work, record.
        def step(session: Any) -> T:
            self.allow(session, action, target)
            result = work(session)
            if changed(result):
                self.record(session, action, target, detail)
            return result

        return self.store.run(step)

    def allow(self, session: Any, action: Action, target: str) -> None:
        """Check one of several targets inside a change. Raises ReadOnly, NotAllowed."""
        self.check(action, audit.find_owner(session, action, target))

    def record(self, session: Any, action: Action, target: str, detail: str | None = None) -> None:
        """Record another target that was changed inside a change."""
        audit.append(session, self.actor, action, RULES[action].kind, target, detail)

    @contextmanager
    def changing(self, action: Action, target: str, *, detail: str | None = None) -> Iterator[None]:
        """Check and record a change of files; the record is written after the change."""
        self.check(action)
        yield
        self.change(action, target, lambda _: None, detail=detail)


class ReadOnlyStore(Store):
    """Every change in this house is made in a `session()`, so this is where a demonstration refuses them all."""

    def session(self) -> NoReturn:
        """Raises ReadOnly."""
        raise ReadOnly


def system_actor(chosen: Settings) -> Actor:
    """Whoever uses the command line, or pages without signing in. Raises RequestError where WHETSTONE_ROLE is no
    role."""
    if chosen.role not in list(Role):
        raise RequestError(f"WHETSTONE_ROLE is `{chosen.role[:40]}`: set it to {', '.join(Role)}, or leave it out.")
    return Actor(name=chosen.owner, role=Role(chosen.role))


def open_workspace(settings: Settings | None = None, *, patience_s: float = PATIENCE_S) -> Workspace:
    """Open the home that the environment names. `patience_s`: seconds that a change waits for another's.

    It acts for the system's user on the command line. Raises StoreUnavailable, RequestError where WHETSTONE_ROLE is no
    role.
    """
    chosen = settings or configuration.load()
    actor = system_actor(chosen)
    store = open_store(chosen, patience_s=patience_s)
    mark = chosen.home / MARK
    if not mark.is_file():
        return Workspace(chosen, store, actor=actor)
    return Workspace(chosen, ReadOnlyStore(store.engine), Demonstration.model_validate_json(mark.read_bytes()), actor)


def open_home(home: Path | None = None, database_url: str | None = None) -> Workspace:
    """Open this home and database instead of those in the environment. Raises as `open_workspace`."""
    overrides = {"home": home.expanduser().resolve() if home else None, "database_url": database_url}
    changes = {name: value for name, value in overrides.items() if value is not None}
    return open_workspace(configuration.load().model_copy(update=changes))
