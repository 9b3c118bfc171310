"""Uploads without a server: a viewer's is refused, and one person's pages hold so many bytes and no more."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from app.web.upload_limits import ACTOR, PATH, UploadLimits
from backend.domain.roles import Actor, Role
from tests.event_loop import run_in_own_loop

MOST = 1000
VERA, OSCAR, ADA = (Actor(name=name, role=role, origin="page") for name, role in zip("voa", Role, strict=True))


class Studio:
    """The layer around an application that keeps what it is sent, as Streamlit does."""

    def __init__(self, alone: Actor = ADA) -> None:
        self.held = MemoryUploadedFileManager("x")
        self.layer = UploadLimits(self._keep, alone, MOST, lambda: self.held.file_storage)

    async def _keep(self, scope: Any, receive: Any, send: Any) -> None:
        session, _, name = scope["path"].removeprefix(PATH).partition("/")
        data = (await receive())["body"]
        self.held.add_file(session, UploadedFileRec(file_id=name, name=name, type="", data=data))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def put(self, actor: Actor | None, path: str, size: int, *, states_length: bool = True) -> tuple[int, str]:
        """Status and words of the answer. `states_length`: whether the request states its length."""
        sent: list[Any] = []
        headers = [(b"content-length", str(size).encode())] if states_length else []
        scope = {"type": "http", "method": "PUT", "path": PATH + path, "headers": headers}
        scope |= {ACTOR: actor} if actor else {}

        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * size}

        async def send(message: Any) -> None:
            sent.append(message)

        run_in_own_loop(lambda: self.layer(scope, receive, send))
        return int(sent[0]["status"]), sent[1]["body"].decode()


@pytest.mark.parametrize("actor", [VERA, Actor(name="n", role=None)])
def test_whoever_may_not_upload_leaves_nothing_in_memory(actor: Actor) -> None:
    for studio, who in ((Studio(), actor), (Studio(alone=actor), None)):
        status, words = studio.put(who, "s-1/f-1", 10)
        assert status == 403 and "ask an admin" in words and not studio.held.file_storage


def test_one_persons_pages_hold_so_many_bytes_in_all() -> None:
    studio = Studio()
    assert [studio.put(OSCAR, f"s-{number}/f", 300)[0] for number in range(4)] == [204, 204, 204, 413]
    assert "the limit of uploads" in studio.put(OSCAR, "s-0/g", 300)[1]
    assert studio.put(ADA, "s-9/f", 900)[0] == 204, "another person's are counted apart"
    studio.held.remove_session_files("s-0")
    assert studio.put(OSCAR, "s-5/f", 300)[0] == 204, "those of a page that was closed count no more"


def test_an_upload_that_does_not_say_how_long_it_is_counts_as_the_longest() -> None:
    assert Studio().put(OSCAR, "s-1/f", 10, states_length=False)[0] == 413
