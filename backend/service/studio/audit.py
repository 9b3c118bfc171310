"""The audit trail as screens and tools see it: who changed what, when and from where."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from backend.domain.errors import NotAllowed
from backend.domain.frozen import Frozen
from backend.domain.roles import Role
from backend.service.workspace import Workspace
from backend.store import audit
from backend.store.audit import AuditFilter


class AuditRecord(Frozen):
    """One change. `origin`: page, command line or supervisor; `kind` and `target` say of what."""

    id: int
    at: datetime
    who: str
    role: str
    origin: str
    action: str
    kind: str
    target: str
    detail: str | None


def listing(
    workspace: Workspace,
    *,
    who: Sequence[str] = (),
    origins: Sequence[str] = (),
    actions: Sequence[str] = (),
    words: str = "",
    limit: int = 100,
    offset: int = 0,
) -> list[AuditRecord]:
    """Latest first; an empty field leaves its column alone. Raises NotAllowed for others' changes to whoever is no
    admin."""
    check_readable(workspace, who)
    with workspace.store.read() as session:
        rows = audit.list_records(session, AuditFilter(who, origins, actions, words), limit=limit, offset=offset)
        return [AuditRecord(**{name: getattr(row, name) for name in AuditRecord.model_fields}) for row in rows]


def count(
    workspace: Workspace,
    *,
    who: Sequence[str] = (),
    origins: Sequence[str] = (),
    actions: Sequence[str] = (),
    words: str = "",
) -> int:
    """Return the number of records that `listing` would return without a limit. Raises as it does."""
    check_readable(workspace, who)
    with workspace.store.read() as session:
        return audit.count(session, AuditFilter(who, origins, actions, words))


def readable_owner(workspace: Workspace) -> tuple[str, ...]:
    """Whose changes the actor may read, as `listing` takes it: their own, or nobody in particular's."""
    return () if workspace.actor.role is Role.ADMIN else (workspace.actor.name,)


def people(workspace: Workspace) -> list[str]:
    """Everybody who ever changed something, as far as the actor may read that."""
    if own := readable_owner(workspace):
        return list(own)
    with workspace.store.read() as session:
        return audit.list_people(session)


def check_readable(workspace: Workspace, who: Sequence[str] = ()) -> None:
    """Raises NotAllowed for whoever is no admin and asks for more than their own."""
    if workspace.actor.role is not Role.ADMIN and tuple(who) != (workspace.actor.name,):
        raise NotAllowed(f"Only an admin may read the audit trail, and {workspace.actor.name} is none.")
