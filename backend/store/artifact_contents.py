"""The ledger of artifacts' contents: which content is where, which artifact names it, which job uses an artifact, and
what is to be removed.

Nothing that somebody names is removed, even if it is named at the same moment: whoever names or gives up a row locks it
first and checks after that, in a further statement (SQLite allows one writer at a time anyway). An address that was
given up is never used again, so its removal may come at any later time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice

from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, or_, update
from sqlmodel import Session, col, select

from backend.domain.errors import NotFound
from backend.domain.jobs.artifact import HeldContent
from backend.domain.jobs.jobs import LIVE, JobState
from backend.store.database import Store
from backend.store.leases import Fenced, clock
from backend.store.tables import ArtifactContentRow, ArtifactRow, ArtifactUseRow, ContentRow, JobRow, PresetRow

UNFINISHED = (*LIVE, JobState.QUEUED)
REMOVED = ""
"""The identity of a content that was removed."""
ADDRESSES_PER_STATEMENT = 500
"""The most addresses that one statement names."""


class Contents:
    """The ledger as a job that publishes an artifact writes to it (`artifacts.base.Ledger`)."""

    def __init__(self, store: Store, job_id: str) -> None:
        self._store, self._job = store, job_id

    def hold(self, place: str, sizes: Mapping[str, int], *, plain: bool = False) -> dict[str, HeldContent]:
        return self._store.run(lambda session: _hold(session, self._job, place, sizes, plain))

    def arrived(self, addresses: Iterable[str]) -> None:
        statement = update(ContentRow).where(col(ContentRow.address).in_(list(addresses))).values(arrived=True)
        self._store.run(lambda session: session.execute(statement))


def _hold(session: Session, job_id: str, place: str, sizes: Mapping[str, int], plain: bool) -> dict[str, HeldContent]:
    moment, holds = clock(session), {}
    for identity, size in sorted(sizes.items()):
        same = (
            col(ContentRow.place) == place,
            col(ContentRow.identity) == identity,
            col(ContentRow.removed_at).is_(None),
        )
        usable = or_(col(ContentRow.arrived), col(ContentRow.job_id) == job_id)
        order = (col(ContentRow.arrived).desc(), col(ContentRow.address))
        row = session.exec(select(ContentRow).where(*same, usable).order_by(*order).limit(1).with_for_update()).first()
        if row is None:
            address = _new_address(session, place, identity, plain)
            row = ContentRow(address=address, place=place, identity=identity, size=size, job_id=job_id, held_at=moment)
            session.add(row)
        row.job_id, row.held_at = job_id, moment
        holds[identity] = HeldContent(row.address, row.arrived)
    return holds


def _new_address(session: Session, place: str, identity: str, plain: bool) -> str:
    address = f"{place}/{identity}"
    if plain and session.get(ContentRow, address) is None:
        return address
    return f"{address}.{secrets.token_hex(4)}"


def link_contents(session: Session, artifact_id: str, addresses: Sequence[str]) -> None:
    """Record that the artifact, whose row exists, names these contents. Raises Fenced if one of them was given up."""
    unique = sorted(set(addresses))
    for some in _chunks(unique):
        there = (col(ContentRow.address).in_(some), col(ContentRow.removed_at).is_(None))
        existing = session.exec(
            select(ContentRow.address).where(*there).order_by(col(ContentRow.address)).with_for_update()
        ).all()
        if len(existing) != len(some):
            raise Fenced(f"What {artifact_id} is made of was removed meanwhile: nothing was registered.")
    session.execute(
        insert(ArtifactContentRow), params=[{"artifact_id": artifact_id, "address": address} for address in unique]
    )


def link_job(session: Session, job_id: str, artifacts: Iterable[str]) -> None:
    """Record that a job that was just queued names these artifacts. Raises NotFound if one of them is gone."""
    for artifact in sorted(set(artifacts)):
        one = select(ArtifactRow.id).where(ArtifactRow.id == artifact).with_for_update(read=True)
        if session.exec(one).first() is None:
            raise NotFound(
                f"There is no artifact {artifact} any more: `whetstone artifacts list` shows those that exist."
            )
        session.execute(insert(ArtifactUseRow), params=[{"artifact_id": artifact, "job_id": job_id}])


def list_users(session: Session, artifact_id: str) -> list[JobRow]:
    """Return the jobs that name the artifact and have not ended."""
    named = select(ArtifactUseRow.job_id).where(ArtifactUseRow.artifact_id == artifact_id)
    return list(session.exec(select(JobRow).where(col(JobRow.id).in_(named), col(JobRow.state).in_(UNFINISHED))))


def find_unused(session: Session, older_than: timedelta) -> list[str]:
    """Return artifacts that were registered so long ago and that nothing names, the oldest first."""
    old = col(ArtifactRow.created_at) < clock(session) - older_than
    return list(session.exec(select(ArtifactRow.id).where(old, ~_is_named()).order_by(col(ArtifactRow.created_at))))


def _is_named() -> ColumnElement[bool]:
    """Match artifacts that a job names, ended or not (so also an evaluation or an endpoint), or a preset. The job that
    made it does not count."""
    jobs = exists().where(col(ArtifactUseRow.artifact_id) == col(ArtifactRow.id))
    presets = exists().where(col(PresetRow.document).contains(col(ArtifactRow.id)))
    return or_(jobs, presets)


def remove_artifact(session: Session, artifact_id: str, *, unless_named: bool = False) -> bool:
    """Delete the artifact's row and give up contents that only it names. Return False if it does not exist or somebody
    names it."""
    row = session.exec(select(ArtifactRow).where(ArtifactRow.id == artifact_id).with_for_update()).first()
    if row is None:
        return False
    if unless_named and session.exec(select(ArtifactRow.id).where(ArtifactRow.id == artifact_id, _is_named())).first():
        return False
    contents = select(ArtifactContentRow.address).where(ArtifactContentRow.artifact_id == artifact_id)
    addresses = sorted(session.exec(contents))
    session.execute(delete(ArtifactContentRow).where(col(ArtifactContentRow.artifact_id) == artifact_id))
    session.delete(row)
    session.flush()
    _give_up(session, addresses)
    return True


def withdraw(session: Session, job_id: str, addresses: Iterable[str]) -> list[str]:
    """Give up what that job published and nobody else names or holds. Return those addresses."""
    own = select(ContentRow.address).where(col(ContentRow.address).in_(list(addresses)), ContentRow.job_id == job_id)
    return _give_up(session, sorted(session.exec(own)), but=job_id)


def give_up_unnamed(session: Session, places: Sequence[str], grace: timedelta) -> None:
    """Give up contents in these places that were held longer ago than `grace` and that no artifact names and no
    unfinished job holds."""
    late = (col(ContentRow.removed_at).is_(None), col(ContentRow.held_at) <= clock(session) - grace, ~_in_use())
    _give_up(
        session,
        session.exec(select(ContentRow.address).where(*late, _in(places)).order_by(col(ContentRow.address))).all(),
    )


def _give_up(session: Session, addresses: Sequence[str], but: str | None = None) -> list[str]:
    """Give up those of the addresses that no artifact names and no unfinished job but `but` holds. Return them."""
    given_up: list[str] = []
    for some in _chunks(addresses):
        in_chunk = col(ContentRow.address).in_(some)
        session.exec(
            select(ContentRow.address).where(in_chunk).order_by(col(ContentRow.address)).with_for_update()
        ).all()
        free = (in_chunk, col(ContentRow.removed_at).is_(None), ~_in_use(but))
        unused = session.exec(select(ContentRow.address).where(*free)).all()
        session.execute(update(ContentRow).where(col(ContentRow.address).in_(unused)).values(removed_at=clock(session)))
        given_up += unused
    return given_up


def _in_use(but: str | None = None) -> ColumnElement[bool]:
    named = exists().where(col(ArtifactContentRow.address) == col(ContentRow.address))
    going = and_(col(JobRow.id) == col(ContentRow.job_id), col(JobRow.state).in_(UNFINISHED))
    holder = exists().where(going if but is None else and_(going, col(JobRow.id) != but))
    return or_(named, holder)


def list_given_up(session: Session, places: Sequence[str]) -> list[ContentRow]:
    """Return the contents to be removed from these places, including those whose removal was begun before."""
    removable = (col(ContentRow.removed_at).is_not(None), col(ContentRow.identity) != REMOVED)
    return list(session.exec(select(ContentRow).where(*removable, _in(places))))


def forget_removed(session: Session, addresses: Iterable[str]) -> None:
    """Record that the bytes at these addresses are gone. The row of a plain address stays, so that it is not used
    again; other addresses hold a random word."""
    plain = col(ContentRow.address) == col(ContentRow.place) + "/" + col(ContentRow.identity)
    for some in _chunks(addresses):
        given_up = (col(ContentRow.address).in_(some), col(ContentRow.removed_at).is_not(None))
        session.execute(update(ContentRow).where(*given_up, plain).values(identity=REMOVED))
        session.execute(delete(ContentRow).where(*given_up, col(ContentRow.identity) != REMOVED))


def list_largest(session: Session, limit: int) -> list[tuple[str, int]]:
    """Return (artifact, bytes of all that it names), the largest first."""
    size, same = func.sum(ContentRow.size), col(ContentRow.address) == col(ArtifactContentRow.address)
    named = select(ArtifactContentRow.artifact_id, size).join(ContentRow, same).group_by(ArtifactContentRow.artifact_id)
    return [
        (artifact, int(size_bytes)) for artifact, size_bytes in session.exec(named.order_by(size.desc()).limit(limit))
    ]


def count_bytes(session: Session) -> int:
    """Return the bytes of all contents that were not given up, each content once."""
    total = session.exec(select(func.sum(ContentRow.size)).where(col(ContentRow.removed_at).is_(None))).one()
    return int(total or 0)


def _in(places: Sequence[str]) -> ColumnElement[bool]:
    return or_(
        *(
            or_(col(ContentRow.place) == place, col(ContentRow.place).startswith(f"{place}/", autoescape=True))
            for place in places
        )
    )


def _chunks(addresses: Iterable[str]) -> Iterator[list[str]]:
    left = iter(addresses)
    while some := list(islice(left, ADDRESSES_PER_STATEMENT)):
        yield some
