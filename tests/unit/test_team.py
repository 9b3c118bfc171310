"""The compose file for a team: it is one, and what it starts is there."""

from __future__ import annotations

import re

import yaml

from backend.cli.main import app
from backend.settings import CHECKOUT

TEAM = CHECKOUT / "assets" / "team"


def test_what_the_compose_file_starts_is_there() -> None:
    services = yaml.safe_load((TEAM / "compose.yaml").read_text())["services"]
    assert set(services) == {"database", "studio", "ray-head"}
    assert services["studio"]["depends_on"]["database"]["condition"] == "service_healthy"
    program, *arguments = services["studio"]["command"]
    assert program == "whetstone" and app([*arguments, "--help"], standalone_mode=False) in (None, 0)
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))


def test_what_the_compose_file_sets_is_read_somewhere() -> None:
    """A variable that nothing reads would be a promise that nothing keeps."""
    named = set(re.findall(r"^    (WHETSTONE_\w+|DATABASE_URL):", (TEAM / "compose.yaml").read_text(), re.MULTILINE))
    read = "".join(path.read_text() for path in (CHECKOUT / "backend").rglob("*.py"))
    unread = {name for name in named if name not in read and f'"{name.removeprefix("WHETSTONE_").lower()}"' not in read}
    assert named and not unread


def test_ray_asks_for_a_token_wherever_it_is_used() -> None:
    """The head listens on the host's network; an empty token, as of /dev/null, is none that Ray starts with."""
    document = yaml.safe_load((TEAM / "compose.yaml").read_text())
    for name in ("studio", "ray-head"):
        service = document["services"][name]
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert (
            service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"
            and "ray_token" in service["secrets"]
        )
    assert document["secrets"]["ray_token"]["file"].endswith(":-/dev/null}")
