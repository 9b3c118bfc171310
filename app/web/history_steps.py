"""Make one action of a person one step of the browser's history: an ASGI layer that puts a script into the document.

The script must run before Streamlit's own, which writes the first parameters of a page before it draws anything of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.web.origin_guard import Message, Receive, Send

SCRIPT = b"""<script>(() => {
    const push = history.pushState.bind(history)
    let acted = false
    for (const kind of ["pointerdown", "keydown"]) window.addEventListener(kind, () => { acted = true }, true)
    window.addEventListener("popstate", () => { acted = false }, true)
    const place = ({pathname, search}) => {
        const parameters = new URLSearchParams(search)
        return [pathname, parameters.get("id"), parameters.get("job")].join()
    }
    history.pushState = (state, title, url) => {
        const moved = place(new URL(url, location.href)) !== place(location)
        if (acted) push(state, title, url)
        else history.replaceState(state, title, url)
        acted = false
        if (moved) document.getElementById("stMain")?.scrollTo(0, 0)
    }
})()</script>"""
"""Streamlit makes each parameter that a page writes as it opens a step, the first of them under the address of the page
before: Back would stay on the page, or lead to a page with parameters of another. And a page that is opened begins at
its top, as does another evaluation, job or model on the same page."""
HEAD = b"<head>"
DROPPED = {b"if-none-match", b"if-modified-since", b"accept-encoding"}
"""Request headers by which a browser keeps the document that it has, which may be one without the script, or gets it
compressed."""
CHANGED = {b"content-length", b"etag", b"last-modified"}
"""Response headers that describe the file without the script."""


class HistorySteps:
    """The layer around Streamlit."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        if "." not in scope["path"].rpartition("/")[2]:  # a page, not one of the files that it loads
            headers = [(name, value) for name, value in scope["headers"] if name.lower() not in DROPPED]
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, _with_script(send))


def _with_script(send: Send) -> Send:
    """Return a `send` that collects a document and sends it with the script; other answers pass unchanged."""
    starts: list[Message] = []
    """The start of a document whose body is not complete."""
    body = bytearray()

    async def sending(message: Message) -> None:
        # 1. Hold the start of a document, and what has come of its body.
        if message["type"] == "http.response.start" and _is_document(message):
            starts.append(message)
            return
        if not starts or message["type"] != "http.response.body":
            await send(message)
            return
        body.extend(message.get("body", b""))
        if message.get("more_body", False):
            return
        # 2. Send it whole, with its new length and nothing by which it could be revalidated.
        start = starts.pop()
        content = bytes(body).replace(HEAD, HEAD + SCRIPT, 1)
        headers = [(name, value) for name, value in start["headers"] if name.lower() not in CHANGED]
        await send({**start, "headers": [*headers, (b"content-length", str(len(content)).encode())]})
        await send({"type": "http.response.body", "body": content})

    return sending


def _is_document(start: Message) -> bool:
    headers: dict[bytes, bytes] = {name.lower(): value for name, value in start.get("headers", ())}
    return bool(start["status"] == 200) and headers.get(b"content-type", b"").startswith(b"text/html")
