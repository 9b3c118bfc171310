"""A studio that is shared: a stranger finds the sign-in page and nothing else; three roles by a real OIDC provider."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from backend.domain.errors import NotNow
from backend.service.jobs import jobs
from backend.service.studio import audit
from backend.settings import CHECKOUT
from tests.browser.running import Studio, free_port, running_studio
from tests.browser.visit import Visit, visiting
from tests.homes import eventually

VIEWER, OPERATOR, ADMIN, NOBODY = "vera@example.org", "oscar@example.org", "ada@example.org", "noel@example.org"
PEOPLE = [
    {"sub": "vera", "email": VIEWER, "email_verified": True, "roles": ["viewer", "staff"]},
    {"sub": "oscar", "email": OPERATOR, "email_verified": True, "roles": "whetstone-operator"},
    {"sub": "ada", "email": ADMIN, "email_verified": True},
    {"sub": "noel", "email": ADMIN, "email_verified": False},
]
"""Roles by claim, by list, and an address that the provider has not verified, which gives none."""
ROUTES = """
from pathlib import Path
from streamlit.starlette import App
for route in App(Path("app/main.py").resolve())._build_starlette_app().routes:
    print(route.path)
"""
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")
ANSWERS_ANYBODY = {"/_stcore/health": 200, "/auth/login": 302, "/auth/logout": 302, "/oauth2callback": 302}
ASKED_FOR = re.compile(rb'href="/sign-in[^"]*"')
"""The way back to what was asked for."""
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "x" * 22 + "==",
}
GIVEN_AWAY = re.compile(rb"streamlit|/root|/home|stcore|session|optimize|starter", re.IGNORECASE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """Open to the network, with a provider on loopback."""
    home = tmp_path_factory.mktemp("shared")
    (home / "secret").write_text("of the client")
    with (
        provider() as issuer,
        running_studio(
            home / "home",
            "--host",
            "0.0.0.0",
            WHETSTONE_OIDC_METADATA_URL=f"{issuer}/.well-known/openid-configuration",
            WHETSTONE_OIDC_CLIENT_ID="whetstone",
            WHETSTONE_OIDC_SECRET_FILE=str(home / "secret"),
            WHETSTONE_OIDC_REDIRECT_URI="http://localhost:{port}/oauth2callback",
            WHETSTONE_ROLE_CLAIM="roles",
            WHETSTONE_ADMINS=ADMIN.upper(),
        ) as running,
    ):
        yield running


@contextmanager
def provider() -> Iterator[str]:
    """A real one, in a process of its own: discovery, sign-in, tokens and keys by HTTP."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port)]
    for person in PEOPLE:
        command += ["--user-claims", json.dumps(person)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually("the provider", lambda: answers(port))
            yield f"http://localhost:{port}"
        finally:
            process.terminate()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def signed_in(
    chromium: Browser, shared: Studio, subject: str, path: str = "/", theme: str = "light"
) -> Iterator[Visit]:
    """Through the sign-in page and the provider's, and back to where the person wanted to go."""
    with visiting(chromium, shared.url, theme) as visit:  # type: ignore[arg-type]
        visit.page.goto(f"{shared.url}{path}")
        expect(visit.page.get_by_text("Sign in to use this studio.")).to_be_visible()
        visit.page.get_by_role("link", name="Sign in").click()
        visit.page.get_by_role("button", name=subject, exact=True).click()
        visit.heard()  # the browser's own word for the 401 and the 403 of a page
        yield visit


def request_page(shared: Studio, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(shared.url).port or 0, timeout=120)
    try:
        connection.request(method, path, headers={"Host": urlsplit(shared.url).netloc} | headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_stranger_finds_nothing_but_the_sign_in_page(shared: Studio) -> None:
    """Every route that Streamlit has, whatever it is called in the next release, by every method, also with forged
    cookies."""
    parts = subprocess.run(
        [sys.executable, "-c", ROUTES], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.split()
    pages = [f"/{page.stem}" for page in (CHECKOUT / "pages").glob("*.py")]
    paths = {re.sub(r"\{\w+(:\w+)?\}", "x", path) for path in parts} | {
        "/",
        "/static/",
        "/job?id=j-1",
        "/%2e%2e/x",
        *pages,
    }
    assert {"/_stcore/stream", "/media/x", "/_stcore/upload_file/x/x", "/oauth2callback"} <= paths and len(paths) > 25
    forged = base64.b64encode(json.dumps({"is_logged_in": True, "origin": shared.url, "sub": "ada"}).encode()).decode()
    for path in sorted(paths):
        for method in METHODS:
            for headers in ({}, {"Cookie": f"_streamlit_user={forged}; whetstone_next=//evil.example"}):
                status, body = request_page(shared, method, path, **headers)
                if path in ANSWERS_ANYBODY:
                    assert status in {ANSWERS_ANYBODY[path], 405, 200, 204}, (method, path, status)
                else:
                    assert status == 401 and (method == "HEAD" or b"Sign in to use this studio." in body), (
                        method,
                        path,
                        status,
                    )
                assert not GIVEN_AWAY.search(ASKED_FOR.sub(b"", body)), (method, path, body)
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "x" * 22 + "==",
        }
        status, body = request_page(shared, "GET", path, **upgrade, Origin=shared.url)
        assert status == 403 and not body, (path, status)
    assert request_page(shared, "GET", "/", Host="evil.example")[0] == 403


def test_a_viewer_changes_nothing_by_page_or_command_line(chromium: Browser, shared: Studio) -> None:
    with signed_in(chromium, shared, "vera", "/build?model=starter&recipe=w8a8") as visit:
        visit.drawn()
        visit.heading("Build")
        expect(visit.page).to_have_url(re.compile(r"/build\?.*model=starter"))
        expect(visit.button("Optimize")).to_be_disabled()
        expect(visit.main.get_by_text("The role viewer may not submit jobs").first).to_be_visible()
        visit.page.get_by_test_id("stSidebar").get_by_role("button", name=VIEWER).click()
        expect(visit.page.get_by_text("with the role viewer")).to_be_visible()
        visit.page.get_by_role("button", name="Sign out").click()
        expect(visit.page).to_have_url(re.compile("/oauth2/end_session"))  # the provider's own
        visit.page.goto(shared.url)
        expect(visit.page.get_by_text("Sign in to use this studio.")).to_be_visible()
        visit.heard()
    environment = os.environ | {"WHETSTONE_HOME": str(shared.workspace.settings.home), "WHETSTONE_ROLE": "viewer"}
    command = [sys.executable, "-m", "backend.cli.main", "optimize", "starter", "--recipe", "w8a8", "--detach"]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "viewer may not submit" in done.stderr
    assert jobs.count(shared.workspace) == 0


def test_an_operator_submits_and_an_admin_sees_it_in_the_trail(chromium: Browser, shared: Studio) -> None:
    with signed_in(chromium, shared, "oscar", "/build?model=starter&recipe=w8a8") as visit:
        visit.drawn()
        visit.button("Optimize").click()
        visit.heading("Optimize starter with w8a8")
    job = jobs.listing(shared.workspace)[0]
    assert job.owner == OPERATOR
    rows = audit.listing(shared.workspace, who=[OPERATOR])
    assert [(record.origin, record.action, record.target) for record in rows] == [("page", "submit", job.id)]
    with suppress(NotNow):  # it may have ended by now
        jobs.cancel(shared.workspace, job.id)
    jobs.wait(shared.workspace, job.id)
    with signed_in(chromium, shared, "ada", f"/activity?activity_words={job.id}") as visit:
        visit.drawn()
        visit.main.get_by_role("tab", name="Changes").click()
        expect(visit.main.get_by_test_id("stDataFrame")).to_be_visible()
        expect(visit.main.get_by_role("radio", name=OPERATOR)).to_be_visible()
        visit.open("/jobs")
        expect(visit.main.get_by_text(f"by {OPERATOR}")).to_be_visible()


def test_who_has_no_role_is_told_so_and_gets_no_further(chromium: Browser, shared: Studio) -> None:
    with signed_in(chromium, shared, "noel") as visit:
        expect(visit.page.get_by_text("You are signed in as noel, who has no role in this studio.")).to_be_visible()
        expect(visit.page.get_by_role("link", name="Sign out")).to_be_visible()
        visit.heard()
