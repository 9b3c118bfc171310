"""The audit trail: every change with who made it, when and from where. Rows are only added and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlmodel import Session, col, func, select

from backend.domain.roles import RULES, Action, Actor, SubjectKind
from backend.store.tables import ArtifactRow, AuditRow, EndpointRow, EvaluationRow, JobRow, ModelRow, PresetRow

OWNED: dict[SubjectKind, type[Any]] = {
    "job": JobRow,
    "artifact": ArtifactRow,
    "evaluation": EvaluationRow,
    "preset": PresetRow,
    "model": ModelRow,
    "local endpoint": EndpointRow,
}
MOST_DETAIL, MAX_WORDS = 500, 8


def find_owner(session: Session, action: Action, target: str) -> str | None:
    """Return the owner of what the action would change; None if it has none or is not in this database (endpoints are
    at AWS)."""
    rule = RULES[action]
    row = session.get(OWNED[rule.kind], target) if rule.own and rule.kind in OWNED else None
    return None if row is None else str(row.owner)


def append(session: Session, actor: Actor, action: str, kind: str, target: str, detail: str | None = None) -> None:
    """Add a record in the transaction of the change itself, so that neither exists without the other."""
    row = AuditRow(
        who=actor.name, role=str(actor.role or ""), origin=actor.origin, action=action, kind=kind, target=target
    )
    row.detail = detail[:MOST_DETAIL].replace("\0", "") if detail else None
    session.add(row)
    session.flush()


class AuditFilter(NamedTuple):
    """Selects records; an empty field selects all. All `words` must be in the target or the detail."""

    who: Sequence[str] = ()
    origins: Sequence[str] = ()
    actions: Sequence[str] = ()
    words: str = ""


def _conditions(chosen: AuditFilter) -> list[Any]:
    columns = ((AuditRow.who, chosen.who), (AuditRow.origin, chosen.origins), (AuditRow.action, chosen.actions))
    conditions: list[Any] = [col(column).in_(values) for column, values in columns if values]
    text = (
        col(AuditRow.target)
        .concat(" ")
        .concat(col(AuditRow.kind))
        .concat(" ")
        .concat(func.coalesce(AuditRow.detail, ""))
    )
    return conditions + [text.icontains(word, autoescape=True) for word in chosen.words.split()[:MAX_WORDS]]


def list_records(session: Session, chosen: AuditFilter, *, limit: int, offset: int = 0) -> list[AuditRow]:
    """Return records, the latest first."""
    statement = select(AuditRow).where(*_conditions(chosen)).order_by(col(AuditRow.id).desc())
    return list(session.exec(statement.offset(offset).limit(limit)))


def count(session: Session, chosen: AuditFilter) -> int:
    return session.exec(select(func.count()).select_from(AuditRow).where(*_conditions(chosen))).one()


def list_people(session: Session) -> list[str]:
    """Return everyone who ever changed something, by name."""
    names = select(AuditRow.who).where(AuditRow.origin != "supervisor").distinct()
    return list(session.exec(names.order_by(col(AuditRow.who))))
