"""Requests that a gateway recorded with their content -> lines of a workload. Pure.

A client of a chat sends the whole conversation with each turn. Such requests are one conversation here: a load asks its
turns one after the other, and the served model's own answers take the place of the recorded ones. A request for a
completion is a prompt. The longest answer is the longest that was given, in tokens, where the server counted them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from backend.domain.frozen import Frozen
from backend.domain.workload import row_parser
from backend.domain.workload.decoding import Row
from backend.domain.workload.row_report import UnusableRow

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RequestKind = Literal["chat", "completion"]
_KIND: dict[str, RequestKind] = {CHAT: "chat", COMPLETION: "completion"}
OK = 200


class RecordedFilter(Frozen):
    """Which requests are taken: those for this model, with this key, from this moment on (ISO 8601, UTC); None: all."""

    model: str | None = None
    key: str | None = None
    since: str | None = None


class RecordedWorkload(NamedTuple):
    """`lines` are JSON objects of the reader's own form, in the order of their first requests."""

    lines: tuple[dict[str, Any], ...]
    kind: RequestKind | None
    """The kind of all of them; None where there is none."""
    requests: int
    """Requests that became lines."""
    left_out: dict[str, int]
    """Reason -> number of requests; those that the filter leaves out are not counted."""


class _Conversation(NamedTuple):
    """`key` is the name of the client's key; who asks, and whom, is part of what the turns of a conversation share."""

    key: str | None
    model: str | None
    began: str
    system: str | None
    turns: tuple[str, ...]
    longest: int | None
    kind: RequestKind
    requests: int = 1


def read_requests(lines: Iterable[bytes | str], chosen: RecordedFilter | None = None) -> RecordedWorkload:
    """Return the workload of a request log's lines, the oldest first.

    An evaluation sends chats or completions, so the kind with fewer conversations is left out.
    """
    # 1. Conversations: a request that continues one takes its place.
    chosen = chosen or RecordedFilter()
    conversations: dict[int, _Conversation] = {}
    latest: dict[tuple[Any, ...], int] = {}
    left_out: Counter[str] = Counter()
    for number, line in enumerate(lines):
        record = _parse(line)
        if record is not None and not _is_chosen(record, chosen):
            continue
        try:
            turn = _read(number, record)
        except UnusableRow as why:
            left_out[why.reason] += 1
            continue
        asking = turn.key, turn.model, turn.kind, turn.system
        place = latest.pop((*asking, turn.turns[:-1]), number) if turn.kind == "chat" else number
        conversations[place] = _joined(conversations.get(place), turn)
        latest[(*asking, turn.turns)] = place
    # 2. One kind of them.
    kinds = Counter(one.kind for one in conversations.values())
    kind = max(kinds, key=lambda name: kinds[name], default=None)
    for one in conversations.values():
        if one.kind != kind:
            left_out[f"it is a {one.kind}, and most are {kind}s"] += one.requests
    used = [one for _, one in sorted(conversations.items()) if one.kind == kind]
    return RecordedWorkload(tuple(map(_line, used)), kind, sum(one.requests for one in used), dict(left_out))


def _joined(earlier: _Conversation | None, later: _Conversation) -> _Conversation:
    if earlier is None:
        return later
    longest = max((tokens for tokens in (earlier.longest, later.longest) if tokens is not None), default=None)
    return later._replace(began=earlier.began, longest=longest, requests=earlier.requests + 1)


def _parse(line: bytes | str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_chosen(record: dict[str, Any], chosen: RecordedFilter) -> bool:
    return (
        chosen.model in (None, record.get("model"))
        and chosen.key in (None, record.get("key"))
        and (chosen.since is None or str(record.get("time")) >= chosen.since)
    )


def _read(number: int, record: dict[str, Any] | None) -> _Conversation:
    """Raises UnusableRow."""
    # 1. A request that was answered, whose content is whole.
    if record is None:
        raise UnusableRow("the line is no record of a request")
    path = record.get("path")
    if record.get("error") is not None or record.get("status") != OK:
        raise UnusableRow("the request was not answered")
    if path not in _KIND:
        raise UnusableRow("it asks for no text")
    if not isinstance(record.get("request"), str):
        raise UnusableRow("its content was not recorded")
    request = _parse(record["request"])
    if request is None:
        raise UnusableRow("its content is longer than what is recorded")
    # 2. Its prompt or turns, by the rules of all workloads.
    entry = row_parser.parse_row(Row(number, {"url": path, "body": request}), {})
    if not entry.turns:
        raise UnusableRow("its prompt is not a text")
    counted = record.get("completion_tokens")
    longest = counted if isinstance(counted, int) and counted > 0 else entry.max_tokens
    who = record.get("key"), record.get("model"), str(record.get("time"))
    return _Conversation(*who, entry.system, entry.turns, longest, _KIND[path])


def _line(conversation: _Conversation) -> dict[str, Any]:
    several = len(conversation.turns) > 1 or conversation.system is not None
    line = {
        "prompt": None if several else conversation.turns[0],
        "turns": list(conversation.turns) if several else None,
        "system": conversation.system,
        "max_tokens": conversation.longest,
        "timestamp": conversation.began,
    }
    return {name: value for name, value in line.items() if value is not None}
