"""Limit uploads by role and size: an ASGI layer between the gate and Streamlit, which accepts files from any page.

Streamlit holds an upload in memory from its last byte until the page is closed, whether or not the page uses it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from streamlit import config, runtime

from app.web.origin_guard import Message, Receive, Send
from backend.domain import roles
from backend.domain.roles import Action, Actor

PATH = "/_stcore/upload_file/"
ACTOR = "whetstone.actor"
"""Key of the ASGI scope: the person whom the gate let in."""
TAKES_NOTHING = {"GET", "HEAD", "OPTIONS", "DELETE"}


Files = Mapping[str, Mapping[str, Any]]
"""Session -> id -> an uploaded file."""


def uploaded_files() -> Files:
    """Return the uploads that Streamlit has in memory."""
    files: Files = getattr(runtime.get_instance().uploaded_file_mgr, "file_storage", {})
    return files


class UploadLimits:
    """The layer. `actor` acts if nobody signs in; `most`: bytes in `storage` per person, None is no limit."""

    def __init__(
        self,
        app: Callable[[Message, Receive, Send], Awaitable[None]],
        actor: Actor,
        most: int | None = None,
        storage: Callable[[], Files] = uploaded_files,
    ) -> None:
        self._app, self._actor, self._most, self._storage = app, actor, most, storage
        self._sessions: defaultdict[str, set[str]] = defaultdict(set)
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PATH) or scope["method"] in TAKES_NOTHING:
            await self._app(scope, receive, send)
            return
        actor: Actor = scope.get(ACTOR, self._actor)
        # 1. The role.
        if why := roles.refusal(actor, Action.UPLOAD):
            await _refuse(send, 403, why)
            return
        # 2. The bytes: those in memory, those on their way, and those that are announced now.
        size = _announced(scope)
        if self._most is not None and self._memory_bytes(actor.name) + self._under_way[actor.name] + size > self._most:
            sentence = (
                f"Your pages have reached the limit of uploads ({self._most / 1e6:.0f} MB): close other "
                "tabs, or reload this page."
            )
            await _refuse(send, 413, sentence)
            return
        # 3. The upload itself.
        self._sessions[actor.name].add(scope["path"].removeprefix(PATH).partition("/")[0])
        self._under_way[actor.name] += size
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[actor.name] -= size

    def _memory_bytes(self, person: str) -> int:
        """Return the bytes in memory for the pages into which that person has uploaded."""
        files = self._storage()
        self._sessions[person] &= set(files)
        total = 0
        for session in self._sessions[person]:
            total += sum(len(file.data) for file in files.get(session, {}).values())
        return total


def _announced(scope: Message) -> int:
    """Return the bytes that the request announces; the largest allowed file if it does not."""
    for name, value in scope["headers"]:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return int(config.get_option("server.maxUploadSize")) * 2**20


async def _refuse(send: Send, status: int, sentence: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})
