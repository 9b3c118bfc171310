"""The audit trail: every change with who made it, when and from where. Rows are added and read, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlmodel import Session, col, func, select

from backend.domain.roles import RULES, Action, Actor, SubjectKind
from backend.store.tables import ArtifactRow, AuditRow, EvaluationRow, JobRow, ModelRow, PresetRow

OWNED: dict[SubjectKind, type[Any]] = {
    "job": JobRow,
    "artifact": ArtifactRow,
    "evaluation": EvaluationRow,
    "preset": PresetRow,
    "model": ModelRow,
}
MOST_DETAIL, MAX_WORDS = 500, 8


def find_owner(session: Session, action: Action, target: str) -> str | None:
    """Of what that action would change; None where it is nobody's, or not here: an endpoint's stands in AWS."""
    rule = RULES[action]
    row = session.get(OWNED[rule.kind], target) if rule.own and rule.kind in OWNED else None
    return None if row is None else str(row.owner)


def append(session: Session, actor: Actor, action: str, kind: str, target: str, detail: str | None = None) -> None:
    """In the transaction of the change itself, so that none of the two is there without the other."""
    row = AuditRow(
        who=actor.name, role=str(actor.role or ""), origin=actor.origin, action=action, kind=kind, target=target
    )
    row.detail = detail[:MOST_DETAIL].replace("\0", "") if detail else None
    session.add(row)
    session.flush()


class AuditFilter(NamedTuple):
    """Which records; an empty field leaves its column alone. `words` must all stand in the target or the detail."""

    who: Sequence[str] = ()
    origins: Sequence[str] = ()
    actions: Sequence[str] = ()
    words: str = ""


def _conditions(chosen: AuditFilter) -> list[Any]:
    columns = ((AuditRow.who, chosen.who), (AuditRow.origin, chosen.origins), (AuditRow.action, chosen.actions))
    found: list[Any] = [col(column).in_(values) for column, values in columns if values]
    text = (
        col(AuditRow.target)
        .concat(" ")
        .concat(col(AuditRow.kind))
        .concat(" ")
        .concat(func.coalesce(AuditRow.detail, ""))
    )
    return found + [text.icontains(word, autoescape=True) for word in chosen.words.split()[:MAX_WORDS]]


def list_records(session: Session, chosen: AuditFilter, *, limit: int, offset: int = 0) -> list[AuditRow]:
    """Latest first."""
    statement = select(AuditRow).where(*_conditions(chosen)).order_by(col(AuditRow.id).desc())
    return list(session.exec(statement.offset(offset).limit(limit)))


def count(session: Session, chosen: AuditFilter) -> int:
    return session.exec(select(func.count()).select_from(AuditRow).where(*_conditions(chosen))).one()


def list_people(session: Session) -> list[str]:
    """Every person who ever changed something, by name."""
    of_scalar = select(AuditRow.who).where(AuditRow.origin != "supervisor").distinct()
    return list(session.exec(of_scalar.order_by(col(AuditRow.who))))
