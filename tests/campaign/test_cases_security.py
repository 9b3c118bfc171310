"""A shared studio as `whetstone up` serves it: uploads by role, and what is left of a page once its sign-in has ended.

The people are signed in by cookies that the test signs with the home's own secret, so no provider is asked.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value, generate_xsrf_token_string
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME, XSRF_COOKIE_NAME
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from backend.service.studio.sign_in import COOKIE_SECRET
from tests.browser.running import Studio, running_studio
from tests.event_loop import run_in_own_loop

pytestmark = [pytest.mark.campaign, pytest.mark.process, pytest.mark.timeout(300)]
PATIENCE_S = 60.0
BOUNDARY = "b" * 20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("shared")
    (folder / "secret").write_text("of the client")
    with running_studio(
        folder / "home",
        "--host",
        "127.0.0.1",
        WHETSTONE_OIDC_METADATA_URL="http://127.0.0.1:9/.well-known/openid-configuration",
        WHETSTONE_OIDC_CLIENT_ID="whetstone",
        WHETSTONE_OIDC_SECRET_FILE=str(folder / "secret"),
        WHETSTONE_OIDC_REDIRECT_URI="http://localhost:{port}/oauth2callback",
        WHETSTONE_ROLE_CLAIM="roles",
    ) as running:
        yield running


def cookies(shared: Studio, subject: str, role: str) -> tuple[str, str]:
    """The cookies of a signed-in person, and the token that a page sends beside them."""
    secret = (shared.workspace.settings.home / COOKIE_SECRET).read_text()
    claims = {"is_logged_in": True, "origin": shared.url, "sub": subject, "roles": [role]}
    token = generate_xsrf_token_string()
    signed = create_signed_value(secret, USER_COOKIE_NAME, json.dumps(claims)).decode()
    return f"{USER_COOKIE_NAME}={signed}; {XSRF_COOKIE_NAME}={token}", token


def ask(shared: Studio, method: str, path: str, cookie: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(shared.url).port or 0, timeout=PATIENCE_S)
    try:
        connection.request(
            method, path, body, headers={"Host": urlsplit(shared.url).netloc, "Cookie": cookie} | headers
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def upload(shared: Studio, session: str, name: str, person: tuple[str, str], size: int) -> tuple[int, str]:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'
    body = head.encode() + b"x" * size + f"\r\n--{BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "X-Xsrftoken": person[1]}
    return ask(shared, "PUT", f"/_stcore/upload_file/{session}/{name}", person[0], body, **headers)


def page(shared: Studio, person: tuple[str, str]) -> connect:
    address = f"{shared.url.replace('http', 'ws')}/_stcore/stream"
    headers = {"Cookie": person[0]}
    return connect(
        address,
        origin=shared.url,
        additional_headers=headers,
        subprotocols=["streamlit", person[1]],
        max_size=2**26,
        open_timeout=PATIENCE_S,
        ping_interval=None,
    )  # type: ignore[arg-type, list-item]


async def session_of(socket: ClientConnection) -> str:
    """Draw the page; the id of its session."""
    back_msg = BackMsg()
    back_msg.rerun_script.query_string = ""
    await socket.send(back_msg.SerializeToString())
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = ForwardMsg.FromString(await socket.recv())
            if message.WhichOneof("type") == "new_session":
                return str(message.new_session.initialize.session_id)


async def until_closed(socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async with asyncio.timeout(PATIENCE_S):
            async for _ in socket:
                pass


def test_a_viewers_upload_is_refused_and_an_operators_are_summed(shared: Studio) -> None:
    viewer, operator = cookies(shared, "vera", "viewer"), cookies(shared, "oscar", "operator")

    async def work() -> None:
        async with page(shared, viewer) as looking, page(shared, operator) as working:
            observed, used = await session_of(looking), await session_of(working)
            status, words = await asyncio.to_thread(upload, shared, observed, "f-1", viewer, 1_000_000)
            assert (status, words) == (403, "The role viewer may not upload files: ask an admin for the role operator.")
            answers = [await asyncio.to_thread(upload, shared, used, f"f-{n}", operator, 150_000_000) for n in range(4)]
            assert [answer[0] for answer in answers] == [204, 204, 204, 413] and "500 MB" in answers[3][1]

    run_in_own_loop(work)


def test_signing_out_closes_the_other_tabs_and_ends_the_cookie(shared: Studio) -> None:
    person, other = cookies(shared, "ann", "operator"), cookies(shared, "bob", "viewer")

    async def work() -> None:
        async with page(shared, person) as first, page(shared, person) as second, page(shared, other) as elsewhere:
            for socket in (first, second, elsewhere):
                await session_of(socket)
            status, _ = await asyncio.to_thread(ask, shared, "GET", "/auth/logout", person[0])
            assert status == 302
            await until_closed(first)
            await until_closed(second)
            await elsewhere.ping()
            assert (await asyncio.to_thread(ask, shared, "GET", "/", person[0]))[0] == 401
            assert (await asyncio.to_thread(ask, shared, "GET", "/", other[0]))[0] == 200

    run_in_own_loop(work)
