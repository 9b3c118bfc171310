"""The script of the history in the document that Streamlit serves, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from app.web.history_steps import HEAD, SCRIPT, HistorySteps
from tests.event_loop import run_in_own_loop

DOCUMENT = b"<html><head><title>x</title></head></html>"
HTML = (b"content-type", b"text/html; charset=utf-8")


def answer(
    *headers: tuple[bytes, bytes], status: int = 200, method: str = "GET", path: str = "/build"
) -> tuple[dict[bytes, bytes], bytes, dict[bytes, bytes]]:
    """Headers and body that a browser gets, and the headers that the application got. The body comes in two parts."""
    sent: list[Any] = []
    values: dict[bytes, bytes] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        values.update(scope["headers"])
        length = (b"content-length", str(len(DOCUMENT)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
        await send({"type": "http.response.body", "body": DOCUMENT[:9], "more_body": True})
        await send({"type": "http.response.body", "body": DOCUMENT[9:]})

    async def send(message: Any) -> None:
        sent.append(message)

    requests = [(b"if-none-match", b'"e"'), (b"accept-encoding", b"gzip"), (b"host", b"localhost")]
    scope = {"type": "http", "method": method, "path": path, "headers": requests}
    run_in_own_loop(lambda: HistorySteps(app)(scope, None, send))  # type: ignore[arg-type]
    assert [message["type"] for message in sent[:2]] == ["http.response.start", "http.response.body"]
    return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:]), values


def test_a_document_begins_with_the_script_and_is_never_an_old_one() -> None:
    headers, body, actual = answer(HTML, (b"etag", b'"e"'), (b"last-modified", b"x"), (b"cache-control", b"no-cache"))
    assert body == DOCUMENT.replace(HEAD, HEAD + SCRIPT)
    assert headers == {
        HTML[0]: HTML[1],
        b"cache-control": b"no-cache",
        b"content-length": str(len(body)).encode(),
    }
    assert actual == {b"host": b"localhost"}


@pytest.mark.parametrize(
    ("header", "options"),
    [
        ((b"content-type", b"text/javascript"), {"path": "/static/js/index.js"}),
        (HTML, {"status": 404}),
        (HTML, {"method": "HEAD"}),
    ],
)
def test_other_answers_pass_unchanged(header: tuple[bytes, bytes], options: dict[str, Any]) -> None:
    headers, body, _ = answer(header, **options)
    assert (headers, body) == ({b"content-length": str(len(DOCUMENT)).encode(), header[0]: header[1]}, DOCUMENT)


def test_a_file_that_a_page_loads_may_be_unchanged() -> None:
    assert b"if-none-match" in answer((b"content-type", b"text/javascript"), path="/static/js/index.js")[2]
